#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/error.h"

/// What CLI11 lacks for flags that are declared beside the component they belong to. For sources, not for headers.

namespace ddptrain {

template <class T>
using Names = std::vector<std::pair<std::string, T>>;

inline const Names<bool> kOnOff = {{"on", true}, {"off", false}};

/// A flag that takes one of a few names. What is parsed stays text, so that --print-config writes it back.
template <class T>
CLI::Option* add_choice(CLI::App& app, const std::string& flag, T& value, const Names<T>& names,
                        const std::string& help) {
  std::string start;
  std::string all;
  for (const auto& [name, meaning] : names) {
    if (start.empty() && meaning == value) start = name;
    if (!all.empty()) all += '|';
    all += name;
  }
  const auto set = [flag, all, names, &value](const std::string& text) {
    for (const auto& [name, meaning] : names) {
      if (name == text) {
        value = meaning;
        return;
      }
    }
    usage_error("{} {}: give one of {}", flag, text, all);
  };
  return app.add_option_function<std::string>(flag, set, help)->type_name(all)->default_str(start);
}

/// UsageError unless `condition` holds of the value that `flag` has.
template <class T>
void require(bool condition, const char* flag, const T& value, const char* what) {
  if (!condition) usage_error("{} {}: give {}", flag, value, what);
}

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
