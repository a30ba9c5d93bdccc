#include "runtime/core/writable.h"

#include <cerrno>
#include <fstream>
#include <system_error>

#include "runtime/core/error.h"

namespace ddptrain {

void require_writable(const std::string& flag, const std::string& path) {
  if (path == "-") usage_error("{} -: give the name of a file; standard output has the tables", flag);
  if (std::ofstream(path, std::ios::app)) return;
  usage_error("{} {}: the file cannot be written ({}). Give a path in a folder that exists and that you may write to.",
              flag, path, std::generic_category().message(errno));
}

}  // namespace ddptrain
