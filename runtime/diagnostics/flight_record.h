#pragma once

#include <chrono>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/process/watch.h"
#include "runtime/diagnostics/peer_link.h"

namespace ddptrain {

/// Facts that a rank knows when it ends because a wait has taken too long. docs/reference/flight-record.md lists the
/// fields.
struct FlightRecord {
  struct Peer {
    std::string host;
    bool answers = false;
    bool ended = false;
    std::optional<std::chrono::steady_clock::time_point> heard_at;  ///< For the last time, if ever.
    Beat last;

    double seconds_ago() const {  ///< Since heard_at.
      return std::chrono::duration<double>(std::chrono::steady_clock::now() - *heard_at).count();
    }
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

/// Creates the file and its folder, and writes the record as lines of JSON. An older file or a link of this name is
/// replaced. Returns false if that fails.
bool write_flight_record(const std::filesystem::path& file, const FlightRecord& record);

}  // namespace ddptrain
