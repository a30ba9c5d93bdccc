#include "launch/app/flags/config_file.h"

// toml++ 3.3 asserts of some files ("[\r") what it then reports as an error.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <cerrno>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <sstream>
#include <system_error>

#include "launch/app/flags/other_names.h"
#include "runtime/core/error.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// As TOML writes it, in one line; tables and arrays, which no flag takes, are cut short. (The behaviour of toml++ 3.3
/// is undefined where it writes an array that holds a nan.)
std::string text_of(const toml::node& node) {
  if (node.is_table()) return "{...}";
  if (node.is_array()) return "[...]";
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  std::ostringstream text;
  text << toml::toml_formatter{node, toml::format_flags::allow_unicode_strings};
  return text.str();
}

/// As the file writes it.
std::string text_of(const FlagValue& value) {
  const bool number = !value.number.empty() && value.text != value.word;
  return number ? value.text : text_of(toml::array{value.text}[0]);
}

/// What the command line would have in place of the node. Nothing for tables, arrays, dates and times.
std::optional<std::string> flag_text(const toml::node& node) {
  if (const auto text = node.value_exact<std::string>()) return text;
  return node.is_number() || node.is_boolean() ? std::optional(text_of(node)) : std::nullopt;
}

/// Returns what to give instead; empty: nothing.
std::string set(Flag& flag, const toml::node& node) {
  std::optional<std::string> text = flag_text(node);
  if (!text)
    return flag.value.number.empty() ? fmt::format("a text in quotes ({})", flag.value.type) : flag.value.number;
  const std::string advice = flag.value.set(*text);
  if (advice.empty()) flag.value.text = *text;
  return advice;
}

/// The parser calls itself once for each part of a dotted key.
constexpr std::uintmax_t kMostBytes = 65536;

toml::table parse(const std::string& path) {
  require_regular("--config", path);
  std::error_code unknown;
  const std::uintmax_t bytes = std::filesystem::file_size(path, unknown);
  if (!unknown && bytes > kMostBytes) {
    usage_error("--config {}: it has {} bytes, and a file of settings has {} at the most", path, bytes, kMostBytes);
  }
  std::ifstream file(path);
  if (!file) {
    usage_error("--config {}: the file cannot be read ({}). Give the name of one that you may read.", path,
                std::generic_category().message(errno));
  }
  try {
    return toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    usage_error(
        "{}:{}:{}: this is not TOML: {}. Write lines as: option = value, with texts in quotes (ddptrain --print-config "
        "shows all)",
        path, error.source().begin.line, error.source().begin.column, printable(error.description(), 400));
  }
}

}  // namespace

std::vector<Setting> settings_of(const Flags& flags) {
  std::vector<Setting> settings;
  for (const Flag& flag : flags) {
    if (flag.in_file) settings.push_back({flag.name(), text_of(flag.value), flag.effect});
  }
  return settings;
}

std::string config_text(const std::vector<Setting>& settings) {
  std::string text;
  for (const Setting& setting : settings) text += fmt::format("{} = {}\n", setting.name, setting.value);
  return text;
}

std::vector<std::string> read_config(Flags& flags, const std::string& path, const ExplainFlag& explain) {
  std::vector<std::string> notes;
  const toml::table table = parse(path);
  if (table["product"].is_array_of_tables()) {
    usage_error("{}: this is the file of a sweep: ddpsweep {} runs it", path, path);
  }
  std::map<toml::source_position, std::pair<std::string, const toml::node*>> lines;  // in the order of the file
  for (const auto& [key, node] : table) lines[key.source().begin] = {std::string(key.str()), &node};
  std::map<std::string, std::string> keys;  // by the names of the flags that they set
  for (const auto& [position, line] : lines) {
    const auto& [key, node] = line;
    const std::string place = fmt::format("{}:{}:{}", path, position.line, position.column);
    const std::string name = printable(key);
    if (node->is_table()) {
      usage_error("{}: {} is a table, and this file has none: write lines as: option = value", place, name);
    }
    const OwnLine own = own_line(key, node->value<std::string>().value_or(text_of(*node)), flags);
    if (!own.advice.empty()) usage_error("{}: {} = {}: give {}", place, name, printable(text_of(*node)), own.advice);
    if (own.name.empty() && !own.value.empty()) continue;  // it asks for nothing
    Flag* const flag = find_flag(flags, "--" + own.name);
    if (flag == nullptr || !flag->in_file) {
      const std::string known = explain ? explain("--" + key) : "";
      usage_error("{}: {} is not an option that a file can give{}", place, name,
                  known.empty() ? " (ddptrain --print-config shows all)" : known);
    }
    const auto [earlier, is_first] = keys.try_emplace(own.name, key);
    if (!is_first) usage_error("{}: {} and {} are the same option: give one", place, printable(earlier->second), name);
    if (flag->given) continue;
    const std::string note = note_about("--" + key, flags);
    if (!note.empty()) notes.push_back(fmt::format("{}: {}", place, note.substr(2)));
    const std::string advice = own.value.empty() ? set(*flag, *node) : set(*flag, *toml::array{own.value}.get(0));
    if (!advice.empty()) usage_error("{}: {} = {}: give {}", place, name, printable(text_of(*node)), advice);
  }
  return notes;
}

std::optional<std::string> text_in_config(const std::string& path, const std::string& name) {
  std::string unused;
  const Flags flags = {{"--" + name, text(unused)}};
  try {
    for (const auto& [key, node] : parse(path)) {
      if (own_line(std::string(key.str()), "true", flags).name == name)
        return node.value<std::string>().value_or(text_of(node));
    }
    return std::nullopt;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace ddptrain
