#pragma once

#include <functional>
#include <string>

#include "runtime/core/flags.h"

namespace CLI {
class App;
}

namespace ddptrain {

/// Explains a flag that the program does not have, such as "a flag of model gpt". Empty: unknown.
using ExplainFlag = std::function<std::string(const std::string& flag)>;

/// Adds options to `app` that set these flags. The flags outlive `app` and are not moved.
void add_flags(CLI::App& app, Flags& flags);

/// CLI::App::parse with the messages of all our programs. Requests for help and version pass through as exceptions.
/// UsageError for text that cannot be parsed, for empty paths (types with FILE, DIR, PATH or LOG), and for unknown
/// flags; it names these in their order with the nearest flag of `app`. `help` is the command that lists the flags.
void parse_flags(CLI::App& app, int argc, const char* const* argv, const std::string& help,
                 const ExplainFlag& explain = {});

}  // namespace ddptrain
