#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace ddptrain {

// The options of a command line as a TOML file: option = value, a line each, no tables. Options that are not
// configurable() cannot be in it.

/// The type names of options that take an integer or auto, and a number or gemm.
inline constexpr const char* kNumberOrAuto = "INT|auto";
inline constexpr const char* kRateOrGemm = "FLOAT|gemm";

/// Gives the options of `app`, which has parsed its command line, the values of a file. Options that the command line
/// gave keep their values. UsageError with file, line and column for what is not TOML, an unknown or repeated option,
/// or a value that the option does not take.
void read_config(CLI::App& app, const std::string& path);

/// The text that a file gives `option`, before its other options are known; nothing where the file cannot be read, is
/// not TOML or has no such text, which read_config() reports.
std::optional<std::string> text_in_config(const std::string& path, const std::string& option);

/// All options with their values. read_config() of it gives the same text again. A line has one option.
std::string config_text(const CLI::App& app);

}  // namespace ddptrain
