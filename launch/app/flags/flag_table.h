#pragma once

#include <string>

#include "runtime/core/flags.h"

namespace ddptrain {

inline constexpr const char* kExpertGroup = "Expert";
inline constexpr const char* kModesGroup = "Modes";

struct Options;
class Workload;

/// All flags of training with a model, in the order of the help. They set `options` and `workload`, which outlive them.
Flags flags_of(Options& options, const std::string& model, Workload& workload);
/// UsageError if flags contradict each other.
void check_flags(const Options& options, const Workload& workload);

}  // namespace ddptrain
