#include "runtime/topology/sysfs.h"

#include <fstream>

namespace ddptrain {

std::string first_line(const std::filesystem::path& file) {
  std::ifstream in(file);
  std::string line;
  std::getline(in, line);
  return line;
}

}  // namespace ddptrain
