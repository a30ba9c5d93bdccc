#include "runtime/diagnostics/flight_record.h"

#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <nlohmann/json.hpp>

#include "runtime/core/files/atomic_file.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

template <class Clock>
double seconds_now() {
  return std::chrono::duration<double>(Clock::now().time_since_epoch()).count();
}

/// Activity of a rank.
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
  line["heard_seconds_ago"] = peer.heard_at ? Json(peer.seconds_ago()) : Json();
  if (peer.heard_at) add_progress(line, peer.last);
  return line;
}

/// `steady_zero`: Unix time at which the steady clock was 0.
Json collective_line(const CollectiveRecord& each, double steady_zero) {
  const auto unix_time = [&](std::int64_t steady) {
    return steady == 0 ? Json() : Json(steady_zero + 1e-9 * static_cast<double>(steady));
  };
  return {{"event", "collective"},
          {"sequence", each.sequence},
          {"name", each.name},
          {"bucket", each.bucket < 0 ? Json() : Json(each.bucket)},
          {"bytes", each.bytes},
          {"step", each.step},
          {"queued", unix_time(each.queued)},
          {"started", unix_time(each.started)},
          {"finished", unix_time(each.finished)}};
}

std::vector<Json> lines_of(const FlightRecord& record) {
  const double now = seconds_now<std::chrono::system_clock>();
  const double steady_zero = now - seconds_now<std::chrono::steady_clock>();
  Json first = {{"event", "flight"},
                {"program", record.program},
                {"job", record.job},
                {"rank", record.rank},
                {"world_size", record.world_size},
                {"host", record.host},
                {"process", getpid()},
                {"time", now},
                {"reason", record.reason},
                {"message", record.message},
                {"timeout_seconds", record.timeout_seconds}};
  add_progress(first, record.own);
  std::vector<Json> lines = {first};
  for (std::size_t rank = 0; rank < record.peers.size(); ++rank) {
    if (static_cast<int>(rank) != record.rank) lines.push_back(peer_line(rank, record.peers[rank]));
  }
  for (const CollectiveRecord& each : record.collectives) lines.push_back(collective_line(each, steady_zero));
  return lines;
}

}  // namespace

bool write_flight_record(const std::filesystem::path& file, const FlightRecord& record) {
  try {
    std::filesystem::create_directories(file.parent_path());
    AtomicFile out(file);                                      // follows no link
    constexpr auto kReplace = Json::error_handler_t::replace;  // text that is not UTF-8
    for (const Json& line : lines_of(record)) out.write(line.dump(-1, ' ', false, kReplace) + '\n');
    out.commit();
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace ddptrain
