#include "launch/app/flags/help_format.h"

#include <sstream>

namespace ddptrain {
namespace {

constexpr std::size_t kColumns = 100;
constexpr std::size_t kMeaningColumn = 30;

/// A line with `left` in front of the first line of `text`, if it fits there.
std::string two_columns(std::string left, const std::string& text) {
  if (text.empty()) return left + "\n";
  const std::string right = wrapped(text, kMeaningColumn);
  if (left.size() + 1 > kMeaningColumn) return left + "\n" + right;
  left.resize(kMeaningColumn, ' ');
  return left + right.substr(kMeaningColumn);
}

std::string names_of(const CLI::Option& option) {
  std::string text;
  for (const std::string& name : option.get_snames()) text += (text.empty() ? "-" : ",-") + name;
  for (const std::string& name : option.get_lnames()) text += (text.empty() ? "--" : ",--") + name;
  return text;
}

}  // namespace

std::string wrapped(std::string_view text, std::size_t indent) {
  const std::string margin(indent, ' ');
  std::string result;
  std::string line = margin;
  std::istringstream words{std::string(text)};
  for (std::string word; words >> word;) {
    if (line.size() > indent && line.size() + 1 + word.size() > kColumns) {
      result += line + "\n";
      line = margin;
    }
    line += (line.size() > indent ? " " : "") + word;
  }
  return result + line + "\n";
}

std::string help_line(const CLI::Option& option) {
  std::string left = "  " + names_of(option);
  if (option.get_items_expected_max() > 0) {
    left += " " + option.get_type_name();
    if (!option.get_default_str().empty()) left += "=" + option.get_default_str();
  }
  return two_columns(left, option.get_description());
}

std::string help_group(const std::string& title, const std::vector<const CLI::Option*>& options) {
  std::string text;
  for (const CLI::Option* option : options) text += help_line(*option);
  return text.empty() ? text : title + ":\n" + text + "\n";
}

std::string help_page(const CLI::App& app) {
  const auto given = app.get_subcommands();
  if (!given.empty()) return help_page(*given.front());
  std::string text = wrapped(app.get_description(), 0) + "\n" + help_group("Options", app.get_options());
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) text += "Subcommands:\n";
  for (const CLI::App* command : commands) text += two_columns("  " + command->get_name(), command->get_description());
  return text;
}

}  // namespace ddptrain
