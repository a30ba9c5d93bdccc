#pragma once

#include <optional>
#include <string>

#include "runtime/core/flags.h"

namespace CLI {
class App;
}

namespace ddptrain {

inline constexpr const char* kExpertGroup = "Expert";
inline constexpr const char* kModesGroup = "Modes";

struct Options;
class Workload;

/// All flags of training with a model, in the order of the help. They set `options` and `workload`, which outlive them.
Flags flags_of(Options& options, const std::string& model, Workload& workload);
/// The word after -h or --help, empty if there is none; nullopt if the command line does not ask for help.
std::optional<std::string> help_topic(int argc, const char* const* argv);
/// The help of ddptrain on a topic: all, a model, or empty for the short help. UsageError for any other topic.
std::string help_text(const CLI::App& app, const std::string& topic);
/// UsageError if flags contradict each other, but for those of the model: see Workload::check_flags().
void check_flags(const Options& options, const Workload& workload);
/// check_flags(), and the same for flags that only training and its descriptions heed. A file of --config may have them
/// for other tasks.
void check_training_flags(const Options& options, const Workload& workload);

}  // namespace ddptrain
