#include "runtime/core/text.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <iterator>
#include <numeric>

namespace ddptrain {
namespace {

/// Insertions, deletions, replacements and swaps of neighbours that make one of the other.
std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  std::iota(cost[0].begin(), cost[0].end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    cost[i][0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({replaced, cost[i - 1][j] + 1, cost[i][j - 1] + 1});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
      }
    }
  }
  return cost[a.size()][b.size()];
}

/// Bytes of the character at the start of `text`, which is not empty: 1 to 4. 0: not UTF-8.
std::size_t utf8_length(std::string_view text) {
  const auto first = static_cast<unsigned char>(text.front());
  const std::size_t length = first < 0x80   ? 1
                             : first < 0xc2 ? 0
                             : first < 0xe0 ? 2
                             : first < 0xf0 ? 3
                             : first < 0xf5 ? 4
                                            : 0;
  if (length > text.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xc0) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string without_controls(std::string_view text) {
  std::string shown;
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    const char first = text.front();
    const bool is_ascii_control = length == 1 && (first == 0x7f || (first < ' ' && first != '\n' && first != '\t'));
    const bool is_c1_control = length == 2 && first == '\xc2' && static_cast<unsigned char>(text[1]) < 0xa0;
    const std::size_t taken = std::max<std::size_t>(length, 1);
    if (length == 0 || is_ascii_control || is_c1_control) {
      shown += '?';
    } else {
      shown += text.substr(0, taken);
    }
    text.remove_prefix(taken);
  }
  return shown;
}

std::string one_line(std::string_view text) {
  std::string shown = without_controls(text);
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c == '\n' || c == '\t'; }, '?');
  return shown;
}

std::string printable(std::string_view text, std::size_t most) {
  std::string shown(text.substr(0, most));
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  return text.size() > most ? shown + "..." : shown;
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

std::string nearest(const std::string& typed, const std::vector<std::string>& names) {
  std::string best;
  std::size_t least = typed.size() / 3 + 1;
  for (const std::string& name : names) {
    const std::size_t distance = typed.size() > 2 && name.rfind(typed, 0) == 0 ? 1 : edit_distance(typed, name);
    if (distance >= least) continue;
    least = distance;
    best = name;
  }
  return best;
}

std::string text_table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
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
