#include "runtime/outer/run_registry.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/core/process/host.h"
#include "runtime/core/process/random_id.h"
#include "runtime/outer/fold.h"
#include "runtime/outer/log_faults.h"
#include "runtime/outer/log_memory.h"
#include "runtime/outer/redis.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kClaimTime{5000};  // after which the name of a killed group is free
constexpr milliseconds kLeaseTime{15000};
constexpr milliseconds kRenewTime{1000};
constexpr milliseconds kLook{200};  // between two looks at a name that is taken
constexpr milliseconds kFarewellTime{1000};
constexpr std::size_t kMostChunks = std::size_t{1} << 20;

/// "process 17 on host" for the text that a job writes: host, process and a random number.
std::string job_in(const std::string& token) {
  const std::size_t host = token.find('\t');
  const std::size_t process = token.find('\t', host + 1);
  if (host == token.npos || process == token.npos) return "another program";
  return fmt::format("process {} on {}", printable(token.substr(host + 1, process - host - 1)),
                     printable(token.substr(0, host)));
}

std::string text(milliseconds time) { return std::to_string(time.count()); }

}  // namespace

struct RunRegistry::Impl {
  Impl(LogAddress address, Options options, LogOutage& outage, std::function<bool()> is_interrupted)
      : address(std::move(address)),
        options(std::move(options)),
        outage(outage),
        key(this->address.keys()),
        is_interrupted(std::move(is_interrupted)) {}

  bool rounds() const { return options.rounds_of > 0; }
  std::string claim_of(const std::string& group) const { return key + "group:" + group; }
  std::string position_of(const std::string& group) const { return key + "at:" + group; }
  std::string chunk(const std::string& id, std::size_t number) const {
    return fmt::format("{}snapshot:{}:{}", key, id, number);
  }
  static std::optional<std::string> get(RedisConnection& connection, const std::string& name);
  std::optional<std::vector<SnapshotHead>> list_of_snapshots(RedisConnection& connection) const;
  std::vector<std::string> groups(RedisConnection& connection) const;

  void keep(const std::stop_token& stop);
  void keep_once();
  void lose_run();
  void note(const RedisFault& error);
  void wait(const std::stop_token& stop, bool until_work);
  void renew_claim();
  bool keeps_lease();
  void end_lease(std::uint64_t next_version);
  void tell_position();
  void tend_snapshots();
  bool is_scarce(std::uint64_t bytes);
  void remove_older_snapshot();
  void make_room(std::vector<SnapshotHead>& heads);
  void write(const SnapshotHead& head, const std::string& values);
  void remove_leftovers(const std::vector<SnapshotHead>& heads);
  void remove_chunks(const std::string& id, std::size_t count);
  std::optional<std::string> oldest_need(const std::vector<SnapshotHead>& heads);
  void trim(const std::vector<SnapshotHead>& heads);
  void say_farewell();

  const LogAddress address;
  const Options options;
  LogOutage& outage;
  const std::string key;
  const std::function<bool()> is_interrupted;
  const std::string token = fmt::format("{}\t{}\t{}", system_host_name(), getpid(), random_id());

  std::atomic<Clock::rep> ends_at{Clock::time_point::max().time_since_epoch().count()};  ///< For the thread.
  RedisConnection startup{address, is_interrupted};
  RedisConnection connection{address, [this] { return Clock::now().time_since_epoch().count() > ends_at; }};

  // The thread's.
  std::string run;  ///< The settings, which have the run's id.
  Clock::time_point last_renewal;
  std::optional<std::string> told_position;
  std::uint64_t due_version = 0;  ///< Of the next snapshot.
  Clock::time_point next_lease;   ///< When to ask for it again.
  std::string last_fault;

  mutable std::mutex mutex;  ///< Of all below.
  std::condition_variable_any changed;
  std::string other_holder;
  std::optional<std::string> position;
  std::uint64_t version = 0;
  bool has_lost_run = false;
  bool has_lease = false;
  std::optional<std::pair<SnapshotHead, std::string>> to_write;

  std::jthread thread;  ///< Ends first.
};

RunRegistry::RunRegistry(LogAddress address, Options options, LogOutage& outage, std::function<bool()> is_interrupted)
    : impl_(std::make_unique<Impl>(std::move(address), std::move(options), outage, std::move(is_interrupted))) {
  require_redis(impl_->address);
  impl_->due_version = static_cast<std::uint64_t>(impl_->options.snapshot_every);
  open_log(impl_->startup, impl_->address, impl_->is_interrupted);
}

RunRegistry::~RunRegistry() { impl_->ends_at = (Clock::now() + kFarewellTime).time_since_epoch().count(); }

// --- before training ------------------------------------------------------------------------------------------------

std::optional<std::string> RunRegistry::Impl::get(RedisConnection& connection, const std::string& name) {
  RedisReply reply = connection.command({"GET", name});
  return reply.is_text ? std::optional(std::move(reply.text)) : std::nullopt;
}

std::optional<std::string> RunRegistry::settings() {
  std::optional<std::string> found;
  ask_log(impl_->address, [&] { found = Impl::get(impl_->startup, impl_->key + "run"); });
  return found;
}

std::string RunRegistry::settings(const std::string& mine) {
  std::optional<std::string> found;
  ask_log(impl_->address, [&] {
    impl_->startup.command({"SET", impl_->key + "run", mine, "NX"});
    found = Impl::get(impl_->startup, impl_->key + "run");
    if (!found) throw RedisFault("the settings of the run are missing");
  });
  return *found;
}

bool RunRegistry::is_finished() {
  bool finished = false;
  ask_log(impl_->address, [&] { finished = Impl::get(impl_->startup, impl_->key + "finished").has_value(); });
  return finished;
}

std::vector<std::string> RunRegistry::Impl::groups(RedisConnection& connection) const {
  std::vector<std::string> names;
  while (names.size() < OuterFold::kMostGroups) {
    std::optional<std::string> name = get(connection, fmt::format("{}member:{}", key, names.size()));
    if (!name) break;
    names.push_back(printable(*name));
  }
  return names;
}

/// Each place is given once and for ever, by one command, so groups that join at the same time do not matter.
void RunRegistry::join() {
  Impl& impl = *impl_;
  const std::string& group = impl.options.group;
  const std::size_t most = impl.options.most_groups;
  std::vector<std::string> names;
  ask_log(impl.address, [&] {
    while (names.size() < most && (names.empty() || names.back() != group)) {
      const std::string place = fmt::format("{}member:{}", impl.key, names.size());
      impl.startup.command({"SET", place, group, "NX"});
      names.push_back(printable(Impl::get(impl.startup, place).value_or("")));
    }
  });
  if (names.back() == group) return;
  usage_error(
      "--group {}: the run {} in the log has its {} already: {}. Use one of these names if its job has ended, or "
      "begin a new run under another name in --outer{}.",
      group, impl.address.name, counted(std::ssize(names), "group"), fmt::format("{}", fmt::join(names, ", ")),
      impl.rounds() ? " with a larger --outer-groups" : "");
}

void RunRegistry::claim() {
  Impl& impl = *impl_;
  const std::string name = impl.claim_of(impl.options.group);
  const Clock::time_point end = Clock::now() + kClaimTime + kRenewTime;
  std::string holder;
  while (true) {
    bool is_mine = false;
    ask_log(impl.address, [&] {
      is_mine = impl.startup.command({"SET", name, impl.token, "NX", "PX", text(kClaimTime)}).is_text;
      if (!is_mine) holder = Impl::get(impl.startup, name).value_or(holder);
    });
    if (is_mine) break;
    if (Clock::now() > end) {
      usage_error(
          "--group {}: {} trains under this name in the run {}. Give each group of a run a name of its own, or end "
          "that job first.",
          impl.options.group, job_in(holder), impl.address.name);
    }
    if (end - Clock::now() > kClaimTime + kRenewTime - kLook) {
      spdlog::info("Group {} of the run {} is in use by {}: waiting up to {} s, in case that job was killed",
                   impl.options.group, impl.address.name, job_in(holder), (kClaimTime + kRenewTime).count() / 1000);
    }
    if (impl.is_interrupted()) throw RedisInterrupted("interrupted");
    std::this_thread::sleep_for(kLook);
  }
  impl.run = settings().value_or("");
  impl.thread = std::jthread([&impl](const std::stop_token& stop) { impl.keep(stop); });
}

std::string RunRegistry::trimmed() {
  std::optional<std::string> position;
  ask_log(impl_->address, [&] { position = Impl::get(impl_->startup, impl_->key + kTrimmedKey); });
  return position.value_or("");
}

std::optional<std::vector<SnapshotHead>> RunRegistry::Impl::list_of_snapshots(RedisConnection& from) const {
  const std::optional<std::string> list = get(from, key + "snapshots");
  return list ? parse_snapshot_list(*list) : std::vector<SnapshotHead>{};
}

std::optional<std::vector<SnapshotHead>> RunRegistry::snapshots() {
  std::optional<std::vector<SnapshotHead>> heads;
  ask_log(impl_->address, [&] { heads = impl_->list_of_snapshots(impl_->startup); });
  return heads;
}

std::optional<std::string> RunRegistry::values_of(const SnapshotHead& head) {
  std::string values;
  values.reserve(head.bytes);
  bool is_whole = true;
  ask_log(impl_->address, [&] {
    for (std::size_t i = 0; i < chunks_of(head) && is_whole; ++i) {
      const std::optional<std::string> chunk = Impl::get(impl_->startup, impl_->chunk(head.id, i));
      is_whole = chunk && values.size() + chunk->size() <= head.bytes;
      if (is_whole) values += *chunk;
    }
  });
  if (!is_whole || values.size() != head.bytes) return std::nullopt;
  if (xxh3_128(values.data(), values.size()) != head.checksum) return std::nullopt;
  return values;
}

// --- while training -------------------------------------------------------------------------------------------------

std::string RunRegistry::other_holder() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->other_holder;
}

bool RunRegistry::has_lost_run() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->has_lost_run;
}

void RunRegistry::publish(const std::optional<std::string>& position, std::uint64_t version) {
  const std::lock_guard lock(impl_->mutex);
  if (position) impl_->position = position;
  impl_->version = version;
  impl_->changed.notify_all();
}

bool RunRegistry::wants_snapshot() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->has_lease && !impl_->to_write;
}

void RunRegistry::write_snapshot(SnapshotHead head, std::string values) {
  head.id = random_id();
  head.bytes = values.size();
  head.checksum = xxh3_128(values.data(), values.size());
  const std::lock_guard lock(impl_->mutex);
  impl_->to_write.emplace(std::move(head), std::move(values));
  impl_->changed.notify_all();
}

void RunRegistry::set_finished() {
  try {
    RedisConnection& connection = impl_->startup;
    connection.close();  // it is as old as the job
    connection.open();
    connection.command({"SET", impl_->key + "finished", "yes"});
  } catch (const Error& error) {
    spdlog::warn("The log {} does not know that the run is finished: {}", impl_->address.text(), error.what());
  }
}

void RunRegistry::Impl::keep(const std::stop_token& stop) {
  while (!stop.stop_requested()) {
    bool has_work = true;
    const bool was_open = connection.is_open();
    try {
      keep_once();
      last_fault.clear();
      outage.answered(connection);
    } catch (const RedisInterrupted&) {
      return;
    } catch (const RedisFault& error) {
      if (was_open && !connection.is_open()) continue;  // it may be of an outage that has ended
      note(error);
      has_work = false;  // it would fail again
    }
    wait(stop, has_work);
  }
  try {
    say_farewell();
  } catch (const Error&) {  // the name is free after kClaimTime
  }
}

void RunRegistry::Impl::keep_once() {
  if (!connection.is_open()) {
    connection.open();
    if (get(connection, key + "run") != run) return lose_run();
  }
  try {
    renew_claim();
    tell_position();
    if (options.snapshot_every > 0) tend_snapshots();
  } catch (const RedisRefusal& error) {
    if (is_full(error)) remove_older_snapshot();
    throw;
  }
}

/// The server was started without its data. What it has is not this group's.
void RunRegistry::Impl::lose_run() {
  connection.close();
  const std::lock_guard lock(mutex);
  has_lost_run = true;
}

void RunRegistry::Impl::note(const RedisFault& error) {
  const bool is_refusal = dynamic_cast<const RedisRefusal*>(&error) != nullptr;
  if (!is_refusal || is_full(error) || is_loading(error)) {
    outage.failed(connection, error);
  } else if (last_fault != error.what()) {
    spdlog::warn("The log {} refuses what keeps the group's place in the run: {}", address.text(), error.what());
  }
  last_fault = error.what();
}

/// Waits for the next sign of life, or for a snapshot that is to be written or has become due.
void RunRegistry::Impl::wait(const std::stop_token& stop, bool until_work) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, stop, kRenewTime, [&] {
    if (!until_work) return false;
    return to_write ||
           (options.snapshot_every > 0 && !has_lease && version >= due_version && Clock::now() > next_lease);
  });
}

void RunRegistry::Impl::renew_claim() {
  const std::string name = claim_of(options.group);
  const std::optional<std::string> holder = get(connection, name);
  if (!holder) {
    connection.command({"SET", name, token, "NX", "PX", text(kClaimTime)});
  } else if (*holder == token) {
    connection.command({"PEXPIRE", name, text(kClaimTime)});
  } else {
    const std::lock_guard lock(mutex);
    other_holder = job_in(*holder);
  }
  last_renewal = Clock::now();
}

void RunRegistry::Impl::tell_position() {
  std::optional<std::string> now;
  {
    const std::lock_guard lock(mutex);
    now = position;
  }
  if (!now || now == told_position) return;
  connection.command({"SET", position_of(options.group), *now});
  told_position = now;
}

// --- snapshots ------------------------------------------------------------------------------------------------------

bool RunRegistry::Impl::keeps_lease() {
  if (get(connection, key + "lease") != token) return false;
  connection.command({"PEXPIRE", key + "lease", text(kLeaseTime)});
  return true;
}

void RunRegistry::Impl::end_lease(std::uint64_t next_version) {
  if (get(connection, key + "lease") == token) connection.command({"DEL", key + "lease"});
  const std::lock_guard lock(mutex);
  has_lease = false;
  to_write.reset();
  due_version = next_version;
}

/// Asks for the lease if a snapshot is due, keeps it until the group has made the snapshot, and writes that.
void RunRegistry::Impl::tend_snapshots() {
  const std::pair<SnapshotHead, std::string>* made = nullptr;  // stays there until it is written, or the lease is lost
  std::uint64_t now = 0;
  bool holds = false;
  {
    const std::lock_guard lock(mutex);
    if (to_write) made = &*to_write;
    now = version;
    holds = has_lease;
  }
  const auto every = static_cast<std::uint64_t>(options.snapshot_every);
  if (made != nullptr) return write(made->first, made->second);
  if (holds) {
    if (!keeps_lease()) end_lease(now);
    return;
  }
  if (Clock::now() < next_lease || (now < due_version && !is_scarce(options.scarce))) return;
  next_lease = Clock::now() + kRenewTime;
  if (!connection.command({"SET", key + "lease", token, "NX", "PX", text(kLeaseTime)}).is_text) return;
  std::vector<SnapshotHead> heads = list_of_snapshots(connection).value_or(std::vector<SnapshotHead>{});
  if (!rounds() && is_scarce(options.scarce)) make_room(heads);
  const std::uint64_t versions = is_scarce(options.scarce) ? 1 : every;  // until the next snapshot
  if (rounds()) {
    trim(heads);
    end_lease(now + every);
  } else if (!heads.empty() && heads.front().version + versions > now) {
    end_lease(heads.front().version + every);
  } else {
    const std::lock_guard lock(mutex);
    has_lease = true;
  }
}

/// The list names a snapshot only when all its chunks are there, and entries are removed only after that.
void RunRegistry::Impl::write(const SnapshotHead& head, const std::string& values) {
  const std::uint64_t next_version = head.version + static_cast<std::uint64_t>(options.snapshot_every);
  if (!keeps_lease()) return end_lease(head.version);
  std::vector<SnapshotHead> heads = list_of_snapshots(connection).value_or(std::vector<SnapshotHead>{});
  remove_leftovers(heads);
  if (is_scarce(values.size())) make_room(heads);
  require_memory(connection, values.size(), "a snapshot");
  connection.command({"SET", key + "unlisted", fmt::format("{} {}", head.id, chunks_of(head))});
  for (std::size_t i = 0; i < chunks_of(head); ++i) {
    connection.command({"SET", chunk(head.id, i), std::string_view(values).substr(i * kSnapshotChunk, kSnapshotChunk)});
    if (Clock::now() < last_renewal + kRenewTime) continue;
    renew_claim();
    if (!keeps_lease()) return end_lease(head.version);
  }
  heads = list_of_snapshots(connection).value_or(std::vector<SnapshotHead>{});
  if (heads.empty() || heads.front().id != head.id) heads.insert(heads.begin(), head);  // else the connection was lost
  const std::vector<SnapshotHead> kept(heads.begin(), heads.begin() + std::min<std::ptrdiff_t>(std::ssize(heads), 2));
  if (!keeps_lease()) return end_lease(head.version);
  connection.command({"SET", key + "snapshots", write_snapshot_list(kept)});
  for (std::size_t i = kept.size(); i < heads.size(); ++i) remove_chunks(heads[i].id, chunks_of(heads[i]));
  if (kept.size() == 2) trim(kept);
  end_lease(next_version);
}

/// Whether the server has fewer free bytes.
bool RunRegistry::Impl::is_scarce(std::uint64_t bytes) {
  const std::optional<std::uint64_t> free = free_memory(connection);
  return free && *free < bytes;
}

/// Leaves it in the list. A full server does this, too, and then takes the notes that removing entries needs.
void RunRegistry::Impl::remove_older_snapshot() {
  const std::vector<SnapshotHead> heads = list_of_snapshots(connection).value_or(std::vector<SnapshotHead>{});
  if (heads.size() > 1) remove_chunks(heads[1].id, chunks_of(heads[1]));
}

/// Keeps the newest snapshot alone, and the entries after it.
void RunRegistry::Impl::make_room(std::vector<SnapshotHead>& heads) {
  if (heads.empty()) return;
  for (std::size_t i = 1; i < heads.size(); ++i) remove_chunks(heads[i].id, chunks_of(heads[i]));
  heads.resize(1);
  connection.command({"SET", key + "snapshots", write_snapshot_list(heads)});
  trim(heads);
}

/// Of a group that was killed while it wrote.
void RunRegistry::Impl::remove_leftovers(const std::vector<SnapshotHead>& heads) {
  const std::optional<std::string> unlisted = get(connection, key + "unlisted");
  if (!unlisted) return;
  const std::size_t blank = unlisted->find(' ');
  const std::string id = unlisted->substr(0, blank);
  for (const SnapshotHead& head : heads) {
    if (head.id == id) return;
  }
  if (blank == unlisted->npos) return;
  remove_chunks(id, std::strtoull(unlisted->c_str() + blank, nullptr, 10));
}

void RunRegistry::Impl::remove_chunks(const std::string& id, std::size_t count) {
  for (std::size_t i = 0; i < std::min(count, kMostChunks); ++i) connection.command({"DEL", chunk(id, i)});
}

/// The oldest position that is still needed: by the oldest of the snapshots, in case that a newer one is damaged, and
/// by groups. In rounds all groups count, because one that was killed repeats what it did after its checkpoint. Nothing
/// if that is not known.
std::optional<std::string> RunRegistry::Impl::oldest_need(const std::vector<SnapshotHead>& heads) {
  if (!rounds() && heads.empty()) return std::nullopt;
  const std::vector<std::string> names = groups(connection);
  if (static_cast<std::int64_t>(names.size()) < options.rounds_of) return std::nullopt;
  std::optional<std::string> oldest;
  if (!rounds()) oldest = heads.back().position;
  for (const std::string& name : names) {
    if (!rounds() && !get(connection, claim_of(name))) continue;
    const std::optional<std::string> at = get(connection, position_of(name));
    if (!at) return std::nullopt;
    if (!oldest || is_later(*oldest, *at)) oldest = at;
  }
  return oldest;
}

void RunRegistry::Impl::trim(const std::vector<SnapshotHead>& heads) {
  const std::optional<std::string> oldest = oldest_need(heads);
  if (!oldest || !is_later(*oldest, get(connection, key + kTrimmedKey).value_or(""))) return;
  connection.command({"SET", key + kTrimmedKey, *oldest});  // first: see LogClient
  connection.command({"XTRIM", key + kLogKey, "MINID", *oldest});
}

void RunRegistry::Impl::say_farewell() {
  if (!connection.is_open()) return;
  if (get(connection, key + "lease") == token) connection.command({"DEL", key + "lease"});
  const std::string name = claim_of(options.group);
  if (get(connection, name) == token) connection.command({"DEL", name});
}

}  // namespace ddptrain
