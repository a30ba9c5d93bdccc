#include "runtime/diagnostics/watchdog.h"

#include <poll.h>
#include <signal.h>
#include <spdlog/fmt/fmt.h>
#include <sys/eventfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/core/process/host.h"
#include "runtime/core/process/random_id.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/core/text.h"
#include "runtime/diagnostics/flight_record.h"
#include "runtime/diagnostics/missing_ranks.h"
#include "runtime/diagnostics/peer_link.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;
using Kind = Beat::Kind;

constexpr double kTick = 0.1;
constexpr double kLongestTick = 0.5;    // after a longer one, this process did not run
constexpr double kHearTick = 0.02;      // between two looks at what the others have said
constexpr double kAnswerSeconds = 0.6;  // in which the others must say how far they are
constexpr double kLateSeconds = 2.0;    // the same if they were heard lately: they may have been stopped
constexpr double kLostBeats = 3.0;      // beats that a lost rank has not sent
constexpr double kRecordSeconds = 3.0;  // for which ranks wait for each other's records
constexpr double kAbortSeconds = 5.0;   // in which MPI_Abort must end the process
constexpr unsigned kGiveUpSeconds = 6;  // after which a rank gives up writing its record
constexpr double kEndFactor = 2.0;      // the time to heed a signal, over the longest time without progress before
constexpr double kStartFactor = 3.0;    // the time-out until the first step has ended, over that of later waits
constexpr double kBeatSeconds = 1.0;    // between two of a rank, in a job of kBeatRanks at most
constexpr double kBeatRanks = 64.0;
constexpr int kFirstBeats = 5;  // sent one after the other

double seconds_between(Clock::time_point from, Clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

template <std::size_t kSize>
void copy_text(char (&to)[kSize], const char* from) {
  if (from != nullptr) std::strncpy(to, from, kSize - 1);
}

extern "C" void leave_at_once(int) { _exit(kTimeoutExitCode); }

}  // namespace

class Watchdog::Guard {
 public:
  Guard(std::string name, int rank, const WatchdogOptions& options, std::shared_ptr<Watch> watch)
      : name_(std::move(name)), options_(options), watch_(std::move(watch)), rank_(rank), host_(system_host_name()) {
    thread_ = std::thread([this] { run(); });
  }

  ~Guard() {
    const std::uint64_t one = 1;
    (void)!write(stop_, &one, sizeof(one));
    thread_.join();
    close(stop_);
  }

  void meet(const World& world, const std::string& place, int stage) {
    WatchedJob job;
    job.rank = world.rank();
    job.addresses = world.all_gather(addresses());
    job.hosts = world.all_gather(world.hostname());
    job.places = world.all_gather(place);
    job.stages = world.all_gather(std::vector<std::int64_t>{stage});
    job.key = key_;
    world.broadcast(&job.key, sizeof(job.key), 0);
    meet(job);
  }

  void meet(const WatchedJob& job) {
    const std::lock_guard lock(mutex_);
    rank_ = job.rank;
    host_ = job.hosts[static_cast<std::size_t>(rank_)];
    key_ = job.key;
    places_ = job.places;
    stages_ = job.stages;
    peers_.resize(job.hosts.size());
    for (std::size_t i = 0; i < job.hosts.size(); ++i) peers_[i].host = job.hosts[i];
    link_.connect(key_, rank_, job.addresses, job.hosts);
    beats_ = 0;
    next_beat_ = 0.0;
  }

  std::string addresses() const { return link_.addresses(); }

 private:
  void run() {
    last_tick_ = Clock::now();
    for (;;) {
      pollfd files[] = {{stop_, POLLIN, 0}, {link_.descriptor(), POLLIN, 0}};
      poll(files, 2, static_cast<int>(1000 * kTick));
      const std::lock_guard lock(mutex_);
      if ((files[0].revents & POLLIN) != 0) {
        tell_all(Kind::ended);
        return;
      }
      hear();
      tick();
    }
  }

  void tick() {
    const Clock::time_point now = Clock::now();
    watched_ += std::min(seconds_between(last_tick_, now), kLongestTick);
    last_tick_ = now;
    note_progress();
    if (asked_by_) end_as_asked();
    if (watch_->ending() != 0) {
      end_where_mpi_cannot();
      return;
    }
    if (watched_ >= next_beat_) {
      tell_all(Kind::alive);
      const bool introduced = beats_++ >= kFirstBeats;  // first ones may arrive before their receivers listen
      next_beat_ = watched_ + (introduced ? beat_seconds() : kTick);
      if (const std::string trouble = watch_->health(); !trouble.empty()) end("health", trouble);
    }
    if (has_waited_too_long() || does_not_heed_signal()) give_up();
  }

  void note_progress() {
    if (SignalRequests::end() == 0) signalled_ = watched_;
    const std::tuple progress{watch_->changes(), watch_->device_steps(), watch_->part().done};
    if (progress == progress_) return;
    progress_ = progress;
    longest_pause_ = std::max(longest_pause_, watched_ - changed_);
    changed_ = watched_;
  }

  bool has_waited_too_long() const {
    const double limit = options_.timeout_seconds * (watch_->first_step_has_ended() ? 1.0 : kStartFactor);
    return limit > 0.0 && watch_->waiting_for() != nullptr && watched_ - changed_ >= limit;
  }

  bool does_not_heed_signal() const {
    const std::string_view phase = watch_->phase();
    const bool is_prompt = phase == "training" || phase == "start-up";  // others may evaluate or write for long
    double limit = options_.timeout_seconds;
    if (is_prompt && (limit <= 0.0 || limit > options_.end_seconds)) limit = options_.end_seconds;
    const double since = watched_ - std::max(changed_, signalled_);
    return limit > 0.0 && since >= std::max(limit, kEndFactor * longest_pause_);
  }

  void end_where_mpi_cannot() {
    if (ending_since_ == 0.0) ending_since_ = watched_;
    if (watched_ - ending_since_ < kAbortSeconds) return;
    say("MPI could not end the job; this process ends alone");
    _exit(watch_->ending());
  }

  // --- what the ranks tell each other -----------------------------------------------------------------------------

  Beat beat(Kind kind = Kind::alive) const {
    Beat beat;
    beat.kind = kind;
    beat.steps = watch_->steps();
    beat.device_steps = watch_->device_steps();
    beat.collectives = watch_->collectives();
    beat.seconds = static_cast<float>(watched_ - changed_);
    copy_text(beat.phase, watch_->phase());
    copy_text(beat.waiting_for, watch_->waiting_for());
    for (const CollectiveRecord& each : watch_->records()) {
      if (each.sequence == 0 || each.finished != 0 || (beat.sequence != 0 && beat.sequence < each.sequence)) continue;
      beat.sequence = each.sequence;
      beat.bucket = each.bucket;
      copy_text(beat.collective, each.name);
    }
    return beat;
  }

  void tell_all(Kind kind) { link_.send_to_all(beat(kind)); }

  void hear() {
    while (const std::optional<Beat> heard = link_.receive()) {
      FlightRecord::Peer& peer = peers_[static_cast<std::size_t>(heard->rank)];
      peer.last = *heard;
      peer.heard_at = Clock::now();
      peer.answers = true;  // give_up() resets it, and asks
      if (heard->kind == Kind::ended) peer.ended = true;
      if (heard->kind == Kind::written) ++written_;
      if (heard->kind != Kind::gives_up) continue;
      // Several ranks may ask at the same time. Each of them needs an answer: the lowest will say who is missing.
      link_.send(heard->rank, beat(has_written_ ? Kind::written : Kind::alive));
      if (!asked_by_ || heard->rank < *asked_by_) asked_by_ = heard->rank;
    }
  }

  void hear_for(double seconds, const std::function<bool()>& enough) {
    Clock::time_point last = Clock::now();
    for (double waited = 0.0; !enough() && waited < seconds;) {
      pollfd file{link_.descriptor(), POLLIN, 0};
      poll(&file, 1, static_cast<int>(1000 * kHearTick));
      hear();
      // If the whole machine stood still, the others could not answer either.
      const Clock::time_point now = Clock::now();
      waited += std::min(seconds_between(std::exchange(last, now), now), 2 * kHearTick);
    }
  }

  double beat_seconds() const { return kBeatSeconds * std::max(1.0, static_cast<double>(size()) / kBeatRanks); }

  bool heard_lately(const FlightRecord::Peer& peer) const {
    return peer.heard_at && peer.seconds_ago() < kLostBeats * beat_seconds();
  }

  // --- the end ----------------------------------------------------------------------------------------------------

  /// Asks the others, says who is missing, and ends.
  [[noreturn]] void give_up() {
    const Beat own = beat();
    for (FlightRecord::Peer& peer : peers_) peer.answers = false;
    tell_all(Kind::gives_up);
    hear_for(kAnswerSeconds, [this] { return count([](const auto& peer) { return peer.answers; }) + 1 >= size(); });
    const auto may_still_answer = [this](const auto& peer) {
      return !peer.ended && !peer.answers && heard_lately(peer);
    };
    hear_for(kLateSeconds - kAnswerSeconds, [&] { return count(may_still_answer) == 0; });
    if (asked_by_ && *asked_by_ < rank_) end_as_asked();
    std::string message =
        fmt::format("{} has been {} for {:.1f} s ({})", named(rank_), doing(own), own.seconds, where(own));
    if (const int signal = SignalRequests::end())
      message += fmt::format(", although {} asked it to end", signal_name(signal));
    message += '.';
    if (own.waiting_for[0] != '\0') message += " " + missing(own);
    end("timeout", message);
  }

  [[noreturn]] void end_as_asked() {
    limit_the_end();
    write_record("asked", fmt::format("{} has given up waiting", named(*asked_by_)));
    has_written_ = true;
    link_.send(*asked_by_, beat(Kind::written));
    // The one that asked ends first, and mpirun then ends this one: it does not bear ranks that end all at once.
    hear_for(kRecordSeconds, [] { return false; });
    _exit(kTimeoutExitCode);
  }

  [[noreturn]] void end(const char* reason, const std::string& message) {
    const bool timeout = std::strcmp(reason, "timeout") == 0;
    limit_the_end();
    say(fmt::format("{} Flight records: {}", message, folder().string()));
    if (!timeout) tell_all(Kind::gives_up);
    const std::size_t others = count([](const auto& peer) { return peer.answers; });
    if (!write_record(reason, message)) {
      say(fmt::format("the flight record could not be written to {}", file().string()));
    }
    hear_for(kRecordSeconds, [&] { return written_ >= others; });
    _exit(timeout ? kTimeoutExitCode : 1);
  }

  /// From now on the process ends within seconds, whatever is locked.
  static void limit_the_end() {
    signal(SIGALRM, leave_at_once);
    alarm(kGiveUpSeconds);
  }

  FlightRecord record(const char* reason, const std::string& message) const {
    FlightRecord facts{
        name_,  job(),  host_, rank_, static_cast<int>(size()), reason, message, options_.timeout_seconds,
        beat(), peers_, {}};
    for (const CollectiveRecord& each : watch_->records()) {
      if (each.sequence != 0) facts.collectives.push_back(each);
    }
    std::ranges::sort(facts.collectives, {}, &CollectiveRecord::sequence);
    return facts;
  }

  /// Which ranks this one may wait for, as far as watchdogs can tell.
  std::string missing(const Beat& own) const {
    if (size() == 1) return "There is no other rank.";
    std::vector<PeerState> others;
    for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) {
      const FlightRecord::Peer& peer = peers_[static_cast<std::size_t>(rank)];
      if (rank == rank_) continue;
      others.push_back({.name = named(rank),
                        .heard = peer.heard_at.has_value(),
                        .ended = peer.ended,
                        .answers = peer.answers,
                        .heard_lately = heard_lately(peer),
                        .seconds_ago = peer.heard_at ? peer.seconds_ago() : 0.0,
                        .calls_the_same = stage_of(rank) == stage_of(rank_),
                        .last = peer.last});
    }
    return missing_ranks(own, others);
  }

  std::string named(int rank) const {
    if (rank < 0) return fmt::format("process {} ({})", getpid(), host_);
    const auto at = static_cast<std::size_t>(rank);
    if (at >= peers_.size()) return fmt::format("rank {} ({})", rank, host_);
    return fmt::format("rank {} ({}{}{})", rank, peers_[at].host, places_[at].empty() ? "" : ", ", places_[at]);
  }

  std::int64_t stage_of(int rank) const { return stages_[static_cast<std::size_t>(rank)]; }

  std::string key_text() const { return fmt::format("{:08x}", key_ >> 32); }
  std::string job() const { return peers_.empty() ? "" : key_text(); }

  /// Nobody can guess the name of a folder in the temporary one, and ranks of a job need not agree on it.
  std::filesystem::path folder() const {
    if (!options_.flight.empty()) return options_.flight;
    std::error_code error;
    return std::filesystem::temp_directory_path(error) / fmt::format("{}-flight-{}", name_, key_text());
  }

  /// The flight record of this rank.
  std::filesystem::path file() const {
    const std::string name = rank_ >= 0 ? fmt::format("rank{}", rank_) : fmt::format("process{}", getpid());
    return folder() / (name + ".jsonl");
  }

  bool write_record(const char* reason, const std::string& message) const {
    if (options_.flight.empty()) mkdir(folder().c_str(), S_IRWXU);  // other users have no access
    return write_flight_record(file(), record(reason, message));
  }

  std::size_t size() const { return std::max<std::size_t>(peers_.size(), 1); }

  template <class Which>
  std::size_t count(const Which& which) const {
    return static_cast<std::size_t>(std::count_if(peers_.begin(), peers_.end(), which));
  }

  /// Straight to standard error: what is locked elsewhere must not hold it up.
  void say(const std::string& text) const {
    const std::string line = fmt::format("{}: {}\n", name_, one_line(text));
    (void)!write(STDERR_FILENO, line.data(), line.size());
  }

  std::string name_;
  WatchdogOptions options_;
  std::shared_ptr<Watch> watch_;
  int stop_ = eventfd(0, EFD_CLOEXEC);

  std::mutex mutex_;  // for what follows, between meet() and the thread
  PeerLink link_;
  int rank_;
  std::string host_;
  std::uint64_t key_ = random_key();       ///< Of this process; after meet() rank 0's, for the job.
  std::vector<FlightRecord::Peer> peers_;  ///< By rank.
  std::vector<std::string> places_;        ///< By rank: in the job; may be empty.
  std::vector<std::int64_t> stages_;       ///< By rank. Ranks of a stage call the same collectives.
  double next_beat_ = 0.0;
  int beats_ = 0;

  // Used by the thread only.
  Clock::time_point last_tick_;
  double watched_ = 0.0;  ///< Seconds that this process ran.
  double changed_ = 0.0;  ///< When progress was last seen.
  double ending_since_ = 0.0;
  double longest_pause_ = 0.0;  ///< Between two changes.
  double signalled_ = 0.0;      ///< When no signal had asked for the end yet.
  std::tuple<std::uint64_t, std::uint64_t, std::uint32_t> progress_{};
  std::optional<int> asked_by_;
  bool has_written_ = false;  ///< Its record, because another rank asked.
  std::size_t written_ = 0;
  std::thread thread_;
};

Watchdog::Watchdog(std::string name, int rank, const WatchdogOptions& options, std::shared_ptr<Watch> watch)
    : guard_(std::make_unique<Guard>(std::move(name), rank, options, std::move(watch))) {}

Watchdog::~Watchdog() = default;

void Watchdog::meet(const World& world, const std::string& place, int stage) { guard_->meet(world, place, stage); }

void Watchdog::meet(const WatchedJob& job) { guard_->meet(job); }

std::string Watchdog::addresses() const { return guard_->addresses(); }

}  // namespace ddptrain
