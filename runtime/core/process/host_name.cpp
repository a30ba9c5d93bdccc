#include "runtime/core/process/host_name.h"

#include <unistd.h>

#include <array>

namespace ddptrain {

std::string system_host_name() {
  std::array<char, 256> name{};
  const bool known = gethostname(name.data(), name.size() - 1) == 0 && name.front() != '\0';
  return known ? name.data() : "host";
}

}  // namespace ddptrain
