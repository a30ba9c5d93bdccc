#include "runtime/core/sizes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdlib>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr double kKi = 1024.0;
constexpr double kK = 1000.0;
constexpr double kMostBytes = kKi * kKi * kKi * kKi;

/// Bytes of the unit with this letter; nothing for any other letter.
std::optional<double> power_of(char letter, double base) {
  switch (letter) {
    case 'k':
      return base;
    case 'm':
      return base * base;
    case 'g':
      return base * base * base;
    case 't':
      return base * base * base * base;
    default:
      return std::nullopt;
  }
}

/// Bytes of a unit in small letters: b, k, kib, kb and so on.
std::optional<double> unit_of(const std::string& name) {
  if (name == "b") return 1.0;
  const std::string rest = name.substr(1);
  if (rest.empty() || rest == "ib") return power_of(name[0], kKi);
  if (rest == "b") return power_of(name[0], kK);
  return std::nullopt;
}

struct Printed {
  const char* name;
  double bytes;
};

constexpr std::array<Printed, 6> kPrinted = {
    {{"GiB", kKi* kKi* kKi}, {"GB", kK* kK* kK}, {"MiB", kKi* kKi}, {"MB", kK* kK}, {"KiB", kKi}, {"KB", kK}}};

}  // namespace

std::optional<std::uint64_t> size_in(std::string_view text, std::uint64_t bare_unit) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789."), text.size());
  const std::string number(text.substr(0, digits));
  std::string name(text.substr(digits));
  for (char& letter : name) letter = static_cast<char>(std::tolower(static_cast<unsigned char>(letter)));
  const auto unit = name.empty() ? static_cast<double>(bare_unit) : unit_of(name);
  char* rest = nullptr;
  const double value = std::strtod(number.c_str(), &rest);
  if (number.empty() || *rest != '\0' || !unit) return std::nullopt;
  const double bytes = value * *unit;
  if (!(bytes <= kMostBytes) || bytes != std::floor(bytes)) return std::nullopt;
  return static_cast<std::uint64_t>(bytes);
}

std::string format_size(std::uint64_t bytes) {
  for (const Printed& unit : kPrinted) {
    const double value = static_cast<double>(bytes) / unit.bytes;
    if (value >= 1.0 && value * 100.0 == std::floor(value * 100.0)) return fmt::format("{:.6g} {}", value, unit.name);
  }
  return fmt::format("{} B", bytes);
}

}  // namespace ddptrain
