#pragma once

#include <map>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

/// What ddptopo leaves to the scripts in ddptools/ beside this program. UsageError where that cannot be done: no
/// python3, a module that is missing, a file that cannot be written.

namespace ddptrain {

/// What is known of a job besides NCCL's log.
struct NcclJob {
  std::map<std::string, std::string> environment = {};  ///< NCCL_* variables; empty: unknown.
  std::vector<std::string> unmentioned = {};            ///< Variables in the log that are not the user's.
  bool joined_by_nvlink = false;                        ///< Every pair of the job's GPUs.
};

/// What a log says: "nccl", the object that docs/reference/topology.md describes; "text", the same as tables; "found":
/// false if there is nothing of NCCL's in it.
nlohmann::json report_nccl_log(const std::string& log, const NcclJob& job);

/// Draws the rings and trees of ddptopo's JSON. Files that are empty are not made. Error if the disk is full.
void draw_topology(const std::string& json, const std::string& svg, const std::string& png);

}  // namespace ddptrain
