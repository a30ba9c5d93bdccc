#include "launch/app/flags/cli.h"

#include <algorithm>
#include <cctype>
#include <regex>
#include <sstream>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// The program and the subcommand that was given.
std::vector<const CLI::App*> parsed_parts(const CLI::App& app) {
  std::vector<const CLI::App*> parts = {&app};
  for (const CLI::App* command : app.get_subcommands()) parts.push_back(command);
  return parts;
}

std::vector<std::string> flags_of(const CLI::App& app) {
  std::vector<std::string> flags;
  for (const CLI::App* part : parsed_parts(app)) {
    for (const CLI::Option* option : part->get_options()) {
      for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
      for (const std::string& name : option->get_snames()) flags.push_back("-" + name);
    }
  }
  return flags;
}

/// What was given and is not known, in the order typed.
std::vector<std::string> unknown_words(const CLI::App& app) {
  std::vector<std::string> words;
  for (const CLI::App* part : parsed_parts(app)) {
    if (part->get_allow_extras()) continue;
    const auto more = part->remaining();
    words.insert(words.end(), more.begin(), more.end());
  }
  return words;
}

bool is_flag(const std::string& word) {
  return word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) == 0 && word[1] != '.';
}

/// What to say behind an unknown flag.
std::string explanation_of(const CLI::App& app, const std::string& flag, const ExplainFlag& explain) {
  if (const std::string known = explain ? explain(flag) : ""; !known.empty()) return known;
  const std::string meant = nearest(flag, flags_of(app));
  return meant.empty() ? "" : fmt::format(", did you mean {}?", meant);
}

/// Names the unknown flags if there are any, because other words are then their values. Flags with the same explanation
/// have it once.
std::string about_unknown(const CLI::App& app, const std::vector<std::string>& words, const ExplainFlag& explain) {
  std::vector<std::pair<std::string, std::vector<std::string>>> groups;  // flags by their explanation
  for (const std::string& word : words) {
    if (!is_flag(word)) continue;
    const std::string flag = word.substr(0, word.find('='));
    const std::string explanation = explanation_of(app, flag, explain);
    const auto group = std::find_if(groups.begin(), groups.end(), [&](const auto& known) {
      return !explanation.empty() && known.first == explanation;
    });
    (group == groups.end() ? groups.emplace_back(explanation, 0) : *group).second.push_back(printable(flag));
  }
  std::vector<std::string> parts;
  for (const auto& [explanation, flags] : groups) {
    parts.push_back(
        fmt::format("unknown flag{} {}{}", flags.size() > 1 ? "s" : "", fmt::join(flags, ", "), explanation));
  }
  if (parts.empty()) {
    for (const std::string& word : words) parts.push_back("unexpected word " + printable(word));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

/// The words behind the program's name. Underscores in the name of a flag count as hyphens.
std::vector<std::string> words_of(const CLI::App& app, int argc, const char* const* argv) {
  std::vector<std::string> known = flags_of(app);
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    for (const std::string& flag : flags_of(*command)) known.push_back(flag);
  }
  std::vector<std::string> words(argv + std::min(argc, 1), argv + argc);
  for (std::string& word : words) {
    std::string name = word.substr(0, word.find('='));
    if (name.rfind("--", 0) != 0) continue;
    std::replace(name.begin(), name.end(), '_', '-');
    if (std::find(known.begin(), known.end(), name) != known.end()) word.replace(0, name.size(), name);
  }
  return words;
}

/// CLI11 says "--batch: 1 required INT missing".
std::string text_of(const CLI::ParseError& error) {
  return std::regex_replace(error.what(), std::regex("^(\\S+): 1 required (\\S+) missing$"), "$1: give a value ($2)");
}

bool takes_path(const std::string& type) {
  for (const char* word : {"FILE", "DIR", "PATH", "LOG"}) {
    if (type.find(word) != std::string::npos) return true;
  }
  return false;
}

void check_paths(const CLI::App& app) {
  for (const CLI::App* part : parsed_parts(app)) {
    for (const CLI::Option* option : part->get_options()) {
      if (option->count() == 0 || !option->results().back().empty() || !takes_path(option->get_type_name())) continue;
      usage_error("--{} '': the path is empty. Give one, or leave the flag out.", option->get_single_name());
    }
  }
}

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

std::string help_line(const CLI::Option& option) {
  std::string left = "  " + names_of(option);
  if (option.get_items_expected_max() > 0) {
    left += " " + option.get_type_name();
    if (!option.get_default_str().empty()) left += "=" + option.get_default_str();
  }
  return two_columns(left, option.get_description());
}

}  // namespace

void add_flags(CLI::App& app, Flags& flags) {
  for (Flag& flag : flags) {
    const auto set = [&flag](const std::string& text) {
      flag.set(text);
      flag.given = true;
    };
    CLI::Option* option = flag.value.type.empty() ? app.add_flag_callback(
                                                        flag.names, [set] { set(""); }, flag.meaning)
                                                  : app.add_option_function<std::string>(flag.names, set, flag.meaning);
    option->group(flag.group)->type_name(flag.value.type)->default_str(flag.value.text);
    option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
}

void parse_flags(CLI::App& app, int argc, const char* const* argv, const std::string& help,
                 const ExplainFlag& explain) {
  std::vector<std::string> words = words_of(app, argc, argv);
  std::reverse(words.begin(), words.end());  // as CLI11 takes them
  try {
    app.parse(std::move(words));
  } catch (const CLI::Success&) {  // help or version
    throw;
  } catch (const CLI::ParseError& error) {
    const auto unknown = unknown_words(app);
    const std::string text = unknown.empty() ? text_of(error) : about_unknown(app, unknown, explain);
    usage_error("{} ({} the flags)", text, help);
  }
  check_paths(app);
}

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

std::string help_group(const std::string& title, const std::vector<const CLI::Option*>& options) {
  std::string text;
  for (const CLI::Option* option : options) text += help_line(*option);
  return text.empty() ? text : title + ":\n" + text + "\n";
}

std::string help_page(const CLI::App& app) {
  const auto given = app.get_subcommands();
  if (!given.empty()) return help_page(*given.front());
  const auto shown = app.get_options([](const CLI::Option* option) { return !option->get_group().empty(); });
  std::string text = wrapped(app.get_description(), 0) + "\n" + help_group("Options", shown);
  const auto commands = app.get_subcommands([](const CLI::App*) { return true; });
  if (!commands.empty()) text += "Subcommands:\n";
  for (const CLI::App* command : commands) text += two_columns("  " + command->get_name(), command->get_description());
  return text;
}

}  // namespace ddptrain
