#pragma once

#include <string>
#include <vector>

#include "runtime/core/watch.h"
#include "runtime/diagnostics/peer_link.h"
#include "runtime/diagnostics/thread_stacks.h"

namespace ddptrain {

/// What a rank knows when it ends because a wait has taken too long. docs/reference/flight-record.md lists the fields.
struct FlightRecord {
  struct Peer {
    std::string host;
    bool answers = false;
    bool heard = false;        ///< Ever.
    double seconds_ago = 0.0;  ///< When it was last heard of.
    Beat last;
  };

  std::string program;
  std::string job;  ///< The same for all ranks of a job; empty: ranks did not know each other yet.
  std::string host;
  int rank = -1;
  int world_size = 1;
  std::string reason;  ///< timeout, asked or health
  std::string message;
  double timeout_seconds = 0.0;
  Beat own;
  std::vector<Peer> peers;  ///< By rank; this rank's own is empty.
  std::vector<CollectiveRecord> collectives;
};

/// Adds lines of JSON to the file at `path`. False where that fails.
bool write_flight_record(const std::string& path, const FlightRecord& record);
bool add_stacks(const std::string& path, const std::vector<ThreadStack>& stacks);
bool add_nccl_ras(const std::string& path, const std::string& status);

}  // namespace ddptrain
