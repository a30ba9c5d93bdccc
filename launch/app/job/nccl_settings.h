#pragma once

#include <map>
#include <string>
#include <vector>

namespace ddptrain {

/// A sentence for each NCCL_* variable of `settings` (name, value) that is not among `known`, with the name that is
/// probably meant. None if nothing is known.
std::vector<std::string> unknown_nccl_settings(const std::map<std::string, std::string>& settings,
                                               const std::vector<std::string>& known, const std::string& nccl_version);

}  // namespace ddptrain
