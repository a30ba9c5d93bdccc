#pragma once

#include <functional>
#include <string>
#include <vector>

#include "runtime/core/flags.h"

namespace CLI {
class App;
}

namespace ddptrain {

/// The one of `names` that `typed` probably means: one that begins so, or differs in up to a third of the letters.
/// Empty: none.
std::string nearest(const std::string& typed, const std::vector<std::string>& names);

/// What else is known of a flag that the program does not have, as "a flag of model gpt"; empty: nothing.
using ExplainFlag = std::function<std::string(const std::string& flag)>;

/// Options of `app` that set these flags, which neither move nor end before it.
void add_flags(CLI::App& app, Flags& flags);

/// As CLI::App::parse, whose requests for help and version it lets through, with messages that all programs share.
/// UsageError for what cannot be parsed; for unknown flags, which it names in the order typed, without their values and
/// with the nearest flag that `app` has; and for empty paths (types with FILE, DIR, PATH or LOG). `help`: the commands
/// that list the flags.
void parse_flags(CLI::App& app, int argc, const char* const* argv, const std::string& help,
                 const ExplainFlag& explain = {});

}  // namespace ddptrain
