#include "runtime/core/out_of_memory.h"

#include <iterator>

namespace ddptrain {

std::string size_text(std::size_t bytes) {
  double value = static_cast<double>(bytes);
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < std::size(units); ++unit) value /= 1000.0;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 2, units[unit]);
}

}  // namespace ddptrain
