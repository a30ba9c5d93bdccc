#include "launch/config_file.h"

// toml++ 3.3 asserts of some files ("[\r") what it then reports as an error.
#define TOML_ASSERT(condition) static_assert(true)
#include <toml++/toml.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/printable.h"

namespace ddptrain {
namespace {

bool is_number(const std::string& type) { return type == "INT" || type == "UINT" || type == "FLOAT"; }

std::string expected(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  if (type == "INT") return "an integer";
  if (type == kNumberOrAuto) return "an integer or \"auto\"";
  if (type == kRateOrGemm) return "a number or \"gemm\"";
  if (type == "UINT") return "an integer that is not negative";
  if (type == "FLOAT") return "a number";
  return "a text in quotes (" + type + ")";
}

/// As TOML writes it, in one line; tables and arrays, which no option takes, are cut short. (The behaviour of
/// toml++ 3.3 is undefined where it writes an array that holds a nan.)
std::string text_of(const toml::node& node) {
  if (node.is_table()) return "{...}";
  if (node.is_array()) return "[...]";
  if (const auto* number = node.as_floating_point()) return fmt::format("{}", number->get());
  std::ostringstream text;
  text << toml::toml_formatter{node, toml::format_flags::allow_unicode_strings};
  return text.str();
}

/// The value of `option` as TOML writes it.
std::string value_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const bool rate = type == kRateOrGemm && option.as<std::string>() != "gemm";
  if (rate || type == "FLOAT") return fmt::format("{}", option.as<double>());
  const bool number = is_number(type) || (type == kNumberOrAuto && option.as<std::string>() != "auto");
  if (number) return fmt::format("{}", option.as<std::int64_t>());
  return text_of(toml::array{option.as<std::string>()}[0]);
}

/// One line of the file, for messages.
struct Entry {
  const toml::node* node;
  std::string place;  ///< FILE:LINE:COLUMN
  std::string name;
  std::string value;

  Entry(const std::string& path, const toml::key& key, const toml::node& value_node)
      : node(&value_node),
        place(fmt::format("{}:{}:{}", path, key.source().begin.line, key.source().begin.column)),
        name(key.str()),
        value(text_of(value_node)) {}

  std::string shown() const { return printable(name) + " = " + printable(value); }
};

/// In the order of the file.
std::vector<Entry> entries_of(const toml::table& table, const std::string& path) {
  std::map<toml::source_position, Entry> entries;
  for (const auto& [key, node] : table) entries.emplace(key.source().begin, Entry(path, key, node));
  std::vector<Entry> ordered;
  for (auto& [position, entry] : entries) ordered.push_back(std::move(entry));
  return ordered;
}

bool is_negative(const toml::node& node) {
  const auto* integer = node.as_integer();
  const auto* number = node.as_floating_point();
  return (integer != nullptr && integer->get() < 0) || (number != nullptr && number->get() < 0);
}

/// As a flag would have it.
std::string flag_text(const Entry& entry, const CLI::Option& option) {
  const toml::node& node = *entry.node;
  const auto text = node.value_exact<std::string>();
  const std::string type = option.get_type_name();
  const std::string word = type == kNumberOrAuto ? "auto" : type == kRateOrGemm ? "gemm" : "";
  if (text && (word.empty() ? !is_number(type) : *text == word)) return *text;
  if (is_negative(node) ? option.get_type_name() != "UINT" : node.is_number() || node.is_boolean()) return entry.value;
  usage_error("{}: {}: give {}", entry.place, entry.shown(), expected(option));
}

void give(CLI::Option& option, const Entry& entry) {
  option.add_result(flag_text(entry, option));
  try {
    option.run_callback();
  } catch (const CLI::ParseError&) {
    usage_error("{}: {}: give {}", entry.place, entry.shown(), expected(option));
  } catch (const UsageError& error) {
    usage_error("{}: {}", entry.place, printable(error.what(), 400));
  }
}

toml::table parse(const std::string& path) {
  std::ifstream file(path);
  std::error_code ignored;
  if (!file || std::filesystem::is_directory(path, ignored)) usage_error("--config {}: the file cannot be read", path);
  try {
    return toml::parse(file, path);
  } catch (const toml::parse_error& error) {
    usage_error("{}:{}:{}: this is not TOML: {}. Write lines as: option = value (ddptrain --print-config shows all)",
                path, error.source().begin.line, error.source().begin.column, printable(error.description(), 400));
  }
}

}  // namespace

void read_config(CLI::App& app, const std::string& path) {
  std::set<const CLI::Option*> given;  // by the command line
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0) given.insert(option);
  }
  const toml::table table = parse(path);
  for (const Entry& entry : entries_of(table, path)) {
    if (entry.node->is_table()) {
      usage_error("{}: {} is a table, and this file has none: write lines as: option = value", entry.place,
                  printable(entry.name));
    }
    CLI::Option* option = app.get_option_no_throw("--" + entry.name);
    if (option == nullptr || !option->get_configurable()) {
      usage_error("{}: {} is not an option that a file can give (ddptrain --print-config shows all)", entry.place,
                  printable(entry.name));
    }
    if (given.count(option) > 0) continue;
    if (option->count() > 0) {
      usage_error("{}: {} is another name of an option that the file has already given: remove one of them",
                  entry.place, printable(entry.name));
    }
    give(*option, entry);
  }
}

std::optional<std::string> text_in_config(const std::string& path, const std::string& option) {
  try {
    return parse(path)[option].value<std::string>();
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

std::string config_text(const CLI::App& app) {
  std::string text;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_configurable()) text += fmt::format("{} = {}\n", option->get_single_name(), value_of(*option));
  }
  return text;
}

}  // namespace ddptrain
