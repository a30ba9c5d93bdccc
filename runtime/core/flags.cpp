#include "runtime/core/flags.h"

#include <cctype>

#include "runtime/core/sizes.h"

namespace ddptrain {

void Flag::set(std::string text) {
  const std::string typed = text;
  const std::string advice = value.set(text);
  if (!advice.empty()) usage_error("--{} {}: give {}", name(), typed.empty() ? "''" : typed, advice);
  value.text = std::move(text);
}

Flag* find_flag(Flags& flags, const std::string& name) {
  for (Flag& flag : flags) {
    if (name == "--" + flag.name()) return &flag;
  }
  return nullptr;
}

FlagValue given(bool& variable) {
  const auto set = [&variable](const std::string&) {
    variable = true;
    return "";
  };
  return {"", "", set};
}

FlagValue text(std::string& variable, const std::string& type) {
  const auto set = [&variable](const std::string& text) {
    variable = text;
    return "";
  };
  return {type, variable, set};
}

FlagValue or_word(const std::string& word, bool& chosen, FlagValue number) {
  FlagValue value = number;
  value.type += "|" + word;
  value.number += fmt::format(" or \"{}\"", word);
  value.word = word;
  value.set = [word, &chosen, number = std::move(number)](std::string& text) {
    chosen = text == word;
    const std::string advice = chosen ? "" : number.set(text);
    return advice.empty() ? advice : fmt::format("{}, or {}", advice, word);
  };
  return value;
}

FlagValue or_size(FlagValue number, double unit) {
  FlagValue value = number;
  value.type = "SIZE";
  value.set = [unit, number = std::move(number)](std::string& text) {
    const bool has_unit = !text.empty() && std::isalpha(static_cast<unsigned char>(text.back())) != 0;
    const auto bytes = has_unit ? size_in(text) : std::nullopt;
    if (bytes) text = fmt::format("{}", static_cast<double>(*bytes) / unit);
    const std::string advice = number.set(text);
    return advice.empty() ? advice : fmt::format("{}, or a size with a unit, such as 512K or 4M", advice);
  };
  return value;
}

FlagValue choice(std::string& variable, const std::vector<std::string>& names) {
  Names<std::string> same;
  for (const std::string& name : names) same.emplace_back(name, name);
  return choice<std::string>(variable, same);
}

FlagValue on_off(bool& variable) { return choice(variable, {{"on", true}, {"off", false}}); }

}  // namespace ddptrain
