#pragma once

#include <set>
#include <string>

namespace CLI {
class App;
}

/// The flags of ddptrain. The flags of a component are added and checked side by side, with their help. The group of a
/// flag is its place in the help, and nothing else.

namespace ddptrain {

inline constexpr const char* kExpertGroup = "Expert";
inline constexpr const char* kModesGroup = "Modes";

struct Options;
class Workload;

/// Adds all flags; parsing writes their values into `options` and `workload`, which must outlive `app`.
void add_flags(CLI::App& app, const std::string& model, Workload& workload, Options& options);
/// Those of one model alone.
void add_model_flags(CLI::App& app, const std::string& model, Workload& workload);
/// Flags that leave the parameters that training ends with as they are: a run may resume with other values of them.
std::set<std::string> flags_without_effect(const Workload& workload);
/// UsageError for a value that is out of range, or that does not go with another.
void check_flags(const Options& options, const Workload& workload);

}  // namespace ddptrain
