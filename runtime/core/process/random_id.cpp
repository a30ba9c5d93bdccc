#include "runtime/core/process/random_id.h"

#include <spdlog/fmt/fmt.h>

#include <random>

namespace ddptrain {

std::uint64_t random_key() {
  std::random_device random;
  return (static_cast<std::uint64_t>(random()) << 32) | random();
}

std::string random_id() { return fmt::format("{:016x}", random_key()); }

}  // namespace ddptrain
