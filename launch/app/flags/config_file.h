#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/core/flags.h"

namespace ddptrain {

// The flags of a command line as a TOML file: name = value, a line each, no tables. A flag without `in_file` cannot be
// in it.

/// The value of a flag, as a file writes it.
struct Setting {
  std::string name;
  std::string value;
  Effect effect;
};

/// The settings of all flags that a file can have.
std::vector<Setting> settings_of(const Flags& flags);

/// One line for each setting. read_config() reads them back.
std::string config_text(const std::vector<Setting>& settings);

/// Sets flags to the values of a file, except those that the command line has given. UsageError with file, line and
/// column for what is not TOML, an unknown or repeated flag, or a value that the flag does not take.
/// Returns what to tell about names of other programs in it: see note_about().
std::vector<std::string> read_config(Flags& flags, const std::string& path, const ExplainFlag& explain = {});

/// The text of one flag in a file. Nothing if there is none, or if the file cannot be read or is not TOML;
/// read_config() reports such errors.
std::optional<std::string> text_in_config(const std::string& path, const std::string& name);

}  // namespace ddptrain
