#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <system_error>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/core/error.h"

/// Flags as data, a row for each. Command line, --config, --help, checkpoints and the comparison between ranks read the
/// rows.

namespace ddptrain {

/// The effect of another value of a flag.
enum class Effect : std::uint8_t {
  parameters,  ///< The parameters that training ends with: a run resumes with the same value.
  speed,       ///< Time and memory. Sums may round in another way.
  output,      ///< Measurements, and files and lines that are written.
};

/// The numbers that a flag takes. `words` name them in a message.
struct Range {
  const char* words = "a smaller number";
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

inline constexpr double kLeastAboveZero = std::numeric_limits<double>::min();
inline constexpr double kMostBelowOne = 1.0 - std::numeric_limits<double>::epsilon() / 2;
inline constexpr Range kOneOrMore = {"at least 1", 1};
inline constexpr Range kZeroOrMore = {"0 or more", 0};
inline constexpr Range kBelowOne = {"at least 0 and below 1", 0, kMostBelowOne};

/// A variable, and the texts that set it.
struct FlagValue {
  std::string type;  ///< In the help: INT, on|off, DIR; empty: the flag takes no value.
  std::string text;  ///< The present value.
  /// Sets the variable, and gives the text of a number its usual form. Otherwise returns what to give, as "1 to 1024".
  std::function<std::string(std::string& text)> set;
  std::string number = {};  ///< "an integer", "a number"; empty: the value is a text.
  std::string word = {};    ///< A text that a number may be, too.
};

struct Flag {
  std::string names;  ///< "--batch", or with a short name: "-h,--help".
  FlagValue value;
  std::string meaning = {};
  Effect effect = Effect::parameters;
  std::string group = {};  ///< The heading above it in the help, and nothing else.
  bool in_file = true;     ///< --config may give it.
  bool given = false;      ///< The command line has given it.

  std::string name() const { return names.substr(names.rfind("--") + 2); }  ///< Without dashes.
  /// UsageError, naming the flag, if the text cannot be its value.
  void set(std::string text);
};

using Flags = std::vector<Flag>;

/// Explains a flag that the program does not have, as the end of a sentence: ": it is a flag of model gpt". Empty:
/// unknown.
using ExplainFlag = std::function<std::string(const std::string& flag)>;

/// By its name with dashes; null: there is none.
Flag* find_flag(Flags& flags, const std::string& name);

/// A flag without a value: true if it is given.
FlagValue given(bool& variable);
FlagValue text(std::string& variable, const std::string& type = "TEXT");
/// A number or `word`, which sets `chosen`.
FlagValue or_word(const std::string& word, bool& chosen, FlagValue number);

/// A number of `unit` bytes, or a size with a unit of its own: 25, 25M, 26214400B (see runtime/core/sizes.h).
FlagValue or_size(FlagValue number, double unit);

template <class T>
FlagValue number(T& variable, Range range = {}) {
  constexpr bool integral = std::is_integral_v<T>;
  const std::string kind = integral ? "an integer" : "a number";
  const auto set = [&variable, range, kind](std::string& text) -> std::string {
    std::conditional_t<integral, std::int64_t, double> value{};
    const char* const end = text.data() + text.size();
    const auto [rest, error] = std::from_chars(text.data(), end, value);
    if (error == std::errc::invalid_argument || rest != end) return kind;
    auto kept = static_cast<double>(value);
    if constexpr (!integral) kept = static_cast<T>(value);
    if (std::isinf(kept)) return std::string(range.words) + ", not infinite";
    if (error != std::errc() || !(kept >= range.least && kept <= range.most)) return range.words;
    variable = static_cast<T>(value);
    text = fmt::format("{}", value);
    return {};
  };
  const char* const type = !integral ? "FLOAT" : std::is_unsigned_v<T> ? "UINT" : "INT";
  return {type, fmt::format("{}", variable), set, kind};
}

template <class T>
using Names = std::vector<std::pair<std::string, T>>;

/// One of a few names.
template <class T>
FlagValue choice(T& variable, const std::type_identity_t<Names<T>>& names) {
  std::string start;
  std::string all;
  for (const auto& [name, meaning] : names) {
    if (start.empty() && meaning == variable) start = name;
    all += (all.empty() ? "" : "|") + name;
  }
  const auto set = [&variable, names, all](const std::string& text) {
    for (const auto& [name, meaning] : names) {
      if (name != text) continue;
      variable = meaning;
      return std::string();
    }
    return "one of " + all;
  };
  return {all, start, set};
}
FlagValue choice(std::string& variable, const std::vector<std::string>& names);
FlagValue on_off(bool& variable);

/// The result of `work`; puts `flag` before the message of a UsageError of those that know of no flags.
template <class Work>
auto about(const char* flag, const Work& work) {
  try {
    return work();
  } catch (const UsageError& error) {
    usage_error("{}: {}", flag, error.what());
  }
}

}  // namespace ddptrain
