#include "benchmarks/ddpbench/sizes.h"

#include <array>
#include <cmath>
#include <cstdlib>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

constexpr double kKi = 1024.0;
constexpr double kK = 1000.0;
constexpr double kMostBytes = kKi * kKi * kKi * kKi;

struct Unit {
  const char* name;
  double bytes;
};

constexpr std::array<Unit, 11> kUnits = {{{"", 1.0},
                                          {"B", 1.0},
                                          {"K", kKi},
                                          {"M", kKi* kKi},
                                          {"G", kKi* kKi* kKi},
                                          {"KiB", kKi},
                                          {"MiB", kKi* kKi},
                                          {"GiB", kKi* kKi* kKi},
                                          {"KB", kK},
                                          {"MB", kK* kK},
                                          {"GB", kK* kK* kK}}};

constexpr std::array<Unit, 6> kPrinted = {
    {{"GiB", kKi* kKi* kKi}, {"GB", kK* kK* kK}, {"MiB", kKi* kKi}, {"MB", kK* kK}, {"KiB", kKi}, {"KB", kK}}};

/// Bytes per unit; 0: there is no such unit.
double unit_of(const std::string& name) {
  for (const Unit& unit : kUnits) {
    if (name == unit.name) return unit.bytes;
  }
  return 0.0;
}

}  // namespace

std::uint64_t parse_size(const std::string& flag, const std::string& text) {
  const std::size_t end = text.find_first_not_of("0123456789.");
  const std::string number = text.substr(0, end);
  const double unit = unit_of(end == std::string::npos ? "" : text.substr(end));
  char* rest = nullptr;
  const double value = std::strtod(number.c_str(), &rest);
  const double bytes = value * unit;
  if (number.empty() || *rest != '\0' || unit == 0.0 || !(bytes <= kMostBytes) || bytes != std::floor(bytes)) {
    usage_error("{} {}: give a whole number of bytes up to 1024G, such as 8, 64K, 1.5M, 4G or 4GB", flag, text);
  }
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  for (const Unit& unit : kPrinted) {
    const double value = static_cast<double>(bytes) / unit.bytes;
    if (value >= 1.0 && value * 100.0 == std::floor(value * 100.0)) return fmt::format("{:.6g} {}", value, unit.name);
  }
  return fmt::format("{} B", bytes);
}

std::vector<std::uint64_t> size_sweep(std::uint64_t begin, std::uint64_t end, std::uint64_t factor) {
  if (begin == 0 || begin > end) {
    usage_error("sizes from {} to {} bytes: the first must be at least 1 and not above the last", begin, end);
  }
  if (factor < 2) usage_error("--factor {}: give 2 or more", factor);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = begin;; size *= factor) {
    sizes.push_back(size);
    if (size > end / factor) return sizes;
  }
}

std::vector<std::uint64_t> one_two_five(std::uint64_t last) {
  std::vector<std::uint64_t> values;
  for (std::uint64_t decade = 1; decade < last; decade *= 10) {
    for (const std::uint64_t digit : {1, 2, 5}) {
      if (digit * decade < last) values.push_back(digit * decade);
    }
    if (decade > last / 10) break;
  }
  values.push_back(last);
  return values;
}

}  // namespace ddptrain::bench
