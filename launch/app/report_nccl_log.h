#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

namespace ddptrain {

/// What is known of a job besides NCCL's log.
struct NcclJob {
  std::map<std::string, std::string> environment = {};  ///< NCCL_* variables; empty: unknown.
  std::vector<std::string> unmentioned = {};            ///< Variables in the log that are not the user's.
  bool joined_by_nvlink = false;                        ///< Every pair of the job's GPUs.
};

/// Reads a log with ddptools/nccl/report.py beside this program. Returns "nccl", the object that
/// docs/reference/topology.md describes; "text", the same as tables; "found", false if the log has nothing of NCCL's.
/// UsageError without python3 or the script.
nlohmann::json report_nccl_log(const std::string& log, const NcclJob& job);

}  // namespace ddptrain
