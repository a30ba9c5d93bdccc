#pragma once

#include <string>

namespace CLI {
class App;
}

/// The groups of ddptrain's flags. Those of a component are added and checked side by side, with their help.

namespace ddptrain {

struct Options;
class Workload;

/// Adds all flags; parsing writes their values into `options` and `workload`, which must outlive `app`.
void add_flags(CLI::App& app, const std::string& model, Workload& workload, Options& options);
/// Those of one model alone.
void add_model_flags(CLI::App& app, const std::string& model, Workload& workload);
/// UsageError for a value that is out of range, or that does not go with another.
void check_flags(const Options& options, const Workload& workload);

}  // namespace ddptrain
