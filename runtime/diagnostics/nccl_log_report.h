#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "runtime/diagnostics/nccl_log_parser.h"

namespace ddptrain {

/// A setting that changed nothing.
struct IneffectiveSetting {
  std::string name;
  std::string value;
  std::string why;
};

/// Settings that cannot have had an effect as far as the log tells. `environment`: the NCCL_* variables of the job
/// where they are known: those that the log never mentions are listed too. `nvlink_all_to_all`: every pair of the job's
/// GPUs is known to be joined by NVLink.
std::vector<IneffectiveSetting> ineffective_settings(const NcclLog& log,
                                                     const std::map<std::string, std::string>& environment,
                                                     bool nvlink_all_to_all);

/// Tables for people: rings, trees, transports by channels, what collectives used, environment, and what could not be
/// read.
std::string nccl_text(const NcclLog& log, const std::vector<IneffectiveSetting>& ineffective);

/// The same as JSON; unknown values are null. docs/reference/topology.md lists the fields.
nlohmann::json nccl_json(const NcclLog& log, const std::vector<IneffectiveSetting>& ineffective);

}  // namespace ddptrain
