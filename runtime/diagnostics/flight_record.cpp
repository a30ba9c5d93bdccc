#include "runtime/diagnostics/flight_record.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

/// Clocks of the steady clock, as seconds since 1970.
class WallClock {
 public:
  WallClock() : offset_(nanoseconds<std::chrono::system_clock>() - nanoseconds<std::chrono::steady_clock>()) {}
  Json at(std::int64_t steady) const {
    return steady == 0 ? Json() : Json(1e-9 * static_cast<double>(steady + offset_));
  }
  Json now() const { return 1e-9 * static_cast<double>(nanoseconds<std::chrono::system_clock>()); }

 private:
  template <class Clock>
  static std::int64_t nanoseconds() {
    return std::chrono::nanoseconds(Clock::now().time_since_epoch()).count();
  }
  std::int64_t offset_;
};

bool write(const std::string& path, const std::vector<Json>& lines, std::ios::openmode mode = std::ios::app) {
  std::ofstream file(path, mode);
  for (const Json& line : lines) file << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n';
  return static_cast<bool>(file << std::flush);
}

/// What a rank does.
void add_progress(Json& line, const Beat& beat) {
  line["phase"] = beat.phase;
  line["waiting_for"] = beat.waiting_for;
  line["seconds"] = beat.seconds;
  line["steps_queued"] = beat.steps;
  line["steps_ended"] = beat.device_steps;
  line["sequence"] = beat.sequence;
  line["collective"] = beat.collective;
  line["bucket"] = beat.bucket < 0 ? Json() : Json(beat.bucket);
}

Json peer_line(std::size_t rank, const FlightRecord::Peer& peer) {
  Json line = {{"event", "peer"}, {"rank", rank}, {"host", peer.host}, {"answers", peer.answers}};
  line["heard_seconds_ago"] = peer.heard ? Json(peer.seconds_ago) : Json();
  if (peer.heard) add_progress(line, peer.last);
  return line;
}

Json collective_line(const CollectiveRecord& each, const WallClock& clock) {
  return {{"event", "collective"},
          {"sequence", each.sequence},
          {"name", each.name},
          {"bucket", each.bucket < 0 ? Json() : Json(each.bucket)},
          {"bytes", each.bytes},
          {"step", each.step},
          {"queued", clock.at(each.queued)},
          {"started", clock.at(each.started)},
          {"finished", clock.at(each.finished)}};
}

}  // namespace

bool write_flight_record(const std::string& path, const FlightRecord& record) {
  const WallClock clock;
  Json first = {{"event", "flight"},
                {"program", record.program},
                {"job", record.job},
                {"rank", record.rank},
                {"world_size", record.world_size},
                {"host", record.host},
                {"process", getpid()},
                {"time", clock.now()},
                {"reason", record.reason},
                {"message", record.message},
                {"timeout_seconds", record.timeout_seconds}};
  add_progress(first, record.own);
  std::vector<Json> lines = {first};
  for (std::size_t rank = 0; rank < record.peers.size(); ++rank) {
    if (static_cast<int>(rank) != record.rank) lines.push_back(peer_line(rank, record.peers[rank]));
  }
  for (const CollectiveRecord& each : record.collectives) lines.push_back(collective_line(each, clock));
  return write(path, lines, std::ios::trunc);
}

bool add_stacks(const std::string& path, const std::vector<ThreadStack>& stacks) {
  std::vector<Json> lines;
  for (const ThreadStack& stack : stacks) {
    lines.push_back({{"event", "thread"},
                     {"id", stack.id},
                     {"name", stack.name},
                     {"state", std::string(1, stack.state)},
                     {"frames", stack.frames}});
  }
  return write(path, lines);
}

bool add_nccl_ras(const std::string& path, const std::string& status) {
  if (status.empty()) return true;
  Json parsed = Json::parse(status, nullptr, false);
  const Json line = {{"event", "nccl_ras"}, {"status", parsed.is_discarded() ? Json(status) : std::move(parsed)}};
  return write(path, {line});
}

}  // namespace ddptrain
