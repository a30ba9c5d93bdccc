#include "runtime/diagnostics/flight_record.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>
#include <utility>

#include "runtime/core/files/descriptor.h"

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

bool write_lines(const Descriptor& file, const std::vector<Json>& lines) {
  std::string text;
  for (const Json& line : lines) text += line.dump(-1, ' ', false, Json::error_handler_t::replace) + '\n';
  for (std::string_view rest = text; !rest.empty();) {
    const ssize_t written = write(file.get(), rest.data(), rest.size());
    if (written < 0) return false;
    rest.remove_prefix(static_cast<std::size_t>(written));
  }
  return true;
}

/// The folder, if it could be opened.
Descriptor open_private_folder(const std::string& path) {
  mkdir(path.c_str(), S_IRWXU);  // or another rank of this job has made it
  Descriptor folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  struct stat facts {};
  if (!folder || fstat(folder.get(), &facts) != 0) return folder;
  const bool is_private = facts.st_uid == geteuid() && (facts.st_mode & (S_IRWXG | S_IRWXO)) == 0;
  return is_private ? std::move(folder) : Descriptor();
}

Descriptor open_shared_folder(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return Descriptor(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
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

std::vector<Json> lines_of(const FlightRecord& record) {
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
  return lines;
}

}  // namespace

bool write_flight_record(const std::string& folder, bool is_private, const std::string& name,
                         const FlightRecord& record) {
  const Descriptor opened = is_private ? open_private_folder(folder) : open_shared_folder(folder);
  if (!opened) return false;
  unlinkat(opened.get(), name.c_str(), 0);
  const Descriptor file(openat(opened.get(), name.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  return write_lines(file, lines_of(record));
}

}  // namespace ddptrain
