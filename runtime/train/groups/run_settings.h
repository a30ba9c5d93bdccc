#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ddptrain {

/// Names and values that all groups of a run share.
using GroupSettings = std::vector<std::pair<std::string, std::string>>;

/// The settings of a new run, as the log has them. A random id makes it another run than an earlier one of this name.
std::string new_run_settings(const GroupSettings& settings);

/// The id in the settings of a run.
std::string run_id_of(std::string_view of_run);

/// UsageError that names the settings in which the run of the log differs.
void require_same_settings(const GroupSettings& mine, std::string_view of_run, const std::string& name);

}  // namespace ddptrain
