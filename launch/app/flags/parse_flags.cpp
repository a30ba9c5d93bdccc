#include "launch/app/flags/parse_flags.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// The program and the subcommands that were given.
std::vector<const CLI::App*> parsed_parts(const CLI::App& app) {
  std::vector<const CLI::App*> parts = {&app};
  for (const CLI::App* command : app.get_subcommands()) {
    const auto more = parsed_parts(*command);
    parts.insert(parts.end(), more.begin(), more.end());
  }
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

std::string about_flag(const CLI::App& app, const std::string& flag, const ExplainFlag& explain) {
  const std::string text = "unknown flag " + printable(flag);
  if (const std::string known = explain ? explain(flag) : ""; !known.empty()) return text + ", " + known;
  const std::string meant = nearest(flag, flags_of(app));
  return meant.empty() ? text : fmt::format("{}, did you mean {}?", text, meant);
}

std::string about_word(const CLI::App& app, const std::string& word) {
  std::vector<std::string> commands;
  for (const CLI::App* command : app.get_subcommands([](const CLI::App*) { return true; })) {
    commands.push_back(command->get_name());
  }
  if (commands.empty() || !app.get_subcommands().empty()) return "unexpected word " + printable(word);
  const std::string meant = nearest(word, commands);
  return fmt::format("unknown subcommand {}{}", printable(word), meant.empty() ? "" : ", did you mean " + meant + "?");
}

/// Of the flags where there are some, as other words are then their values.
std::string about_unknown(const CLI::App& app, const std::vector<std::string>& words, const ExplainFlag& explain) {
  std::vector<std::string> parts;
  for (const std::string& word : words) {
    if (is_flag(word)) parts.push_back(about_flag(app, word.substr(0, word.find('=')), explain));
  }
  if (parts.empty()) {
    for (const std::string& word : words) parts.push_back(about_word(app, word));
  }
  return fmt::format("{}", fmt::join(parts, "; "));
}

bool takes_path(const std::string& type) {
  for (const char* word : {"FILE", "DIR", "PATH", "LOG"}) {
    if (type.find(word) != std::string::npos) return true;
  }
  return false;
}

void check_values(const CLI::App& app) {
  for (const CLI::App* part : parsed_parts(app)) {
    for (const CLI::Option* option : part->get_options()) {
      if (option->count() == 0) continue;
      const std::string flag = "--" + option->get_single_name();
      const std::string value = option->results().back();
      if (value.empty() && takes_path(option->get_type_name())) {
        usage_error("{} '': the path is empty. Give one, or leave the flag out.", flag);
      }
    }
  }
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
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success&) {  // help or version
    throw;
  } catch (const CLI::ParseError& error) {
    const auto words = unknown_words(app);
    const std::string text = words.empty() ? error.what() : about_unknown(app, words, explain);
    usage_error("{} ({} the flags)", text, help);
  }
  check_values(app);
}

}  // namespace ddptrain
