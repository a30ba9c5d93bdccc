#pragma once

#include <optional>
#include <string>

namespace CLI {
class App;
}

namespace ddptrain {

/// The word after -h or --help, empty if there is none; nullopt if the command line does not ask for help.
std::optional<std::string> help_topic(int argc, const char* const* argv);

/// The help of ddptrain on a topic: all, a model, or empty for the short help. UsageError for any other topic.
std::string help_text(const CLI::App& app, const std::string& topic);

}  // namespace ddptrain
