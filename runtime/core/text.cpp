#include "runtime/core/text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>

namespace ddptrain {
namespace {

/// Bytes of the UTF-8 character that `text` begins with; 0: none, or a control character beyond ASCII (U+0080 to
/// U+009F).
std::size_t utf8_length(std::string_view text) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const std::size_t length = byte(0) < 0x80 ? 1 : byte(0) >= 0xF0 ? 4 : byte(0) >= 0xE0 ? 3 : 2;
  if (length == 1) return 1;
  if (byte(0) < 0xC2 || byte(0) > 0xF4 || text.size() < length) return 0;
  std::uint32_t code = byte(0) & (0xFFu >> (length + 1));
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
    code = code << 6 | (byte(i) & 0x3Fu);
  }
  const std::uint32_t least = length == 2 ? 0xA0 : length == 3 ? 0x800 : 0x10000;
  const bool surrogate = code >= 0xD800 && code < 0xE000;
  return code >= least && code <= 0x10FFFF && !surrogate ? length : 0;
}

bool is_control(char c) { return (static_cast<unsigned char>(c) < ' ' && c != '\n' && c != '\t') || c == '\x7f'; }

}  // namespace

std::string printable(std::string_view text, std::size_t most) {
  std::string shown(text.substr(0, most));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > most ? shown + "..." : shown;
}

std::string printable_text(std::string_view text) {
  constexpr const char* kDigits = "0123456789abcdef";
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = is_control(text[0]) ? 0 : utf8_length(text);
    if (length > 0) {
      shown += text.substr(0, length);
    } else {
      const auto byte = static_cast<unsigned char>(text[0]);
      shown += {'\\', 'x', kDigits[byte / 16], kDigits[byte % 16]};
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return shown;
}

std::string counted(std::int64_t number, std::string_view thing) {
  return std::to_string(number).append(" ").append(thing).append(number == 1 ? "" : "s");
}

std::string size_text(std::size_t bytes) {
  double value = static_cast<double>(bytes);
  const char* units[] = {"B", "kB", "MB", "GB", "TB"};
  std::size_t unit = 0;
  for (; value >= 1000.0 && unit + 1 < std::size(units); ++unit) value /= 1000.0;
  return fmt::format("{:.{}f} {}", value, unit == 0 ? 0 : 2, units[unit]);
}

std::string significant(double value, int digits) {
  if (value == 0.0 || !std::isfinite(value)) return fmt::format("{:.3g}", value);
  const auto exponent = [](double of) { return static_cast<int>(std::floor(std::log10(std::abs(of)))); };
  const double unit = std::pow(10.0, exponent(value) - digits + 1);
  const double rounded = std::round(value / unit) * unit;
  std::string text = fmt::format("{:.{}f}", rounded, std::max(0, digits - 1 - exponent(rounded)));
  const std::size_t first = rounded < 0.0 ? 1 : 0;
  for (std::size_t at = std::min(text.find('.'), text.size()); at > first + 3;) text.insert(at -= 3, 1, ',');
  return text;
}

std::string text_table(const std::vector<std::vector<std::string>>& rows, std::size_t indent) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line(indent, ' ');
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      line.append(widths[i] - row[i].size() + 2, ' ');
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace ddptrain
