#include "runtime/outer/log_client.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/outer/log_faults.h"
#include "runtime/outer/log_memory.h"
#include "runtime/outer/redis.h"
#include "runtime/outer/snapshot.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

constexpr const char* kReadWait = "200";  // milliseconds for which the server holds back an empty answer
constexpr std::size_t kMostEntriesAtOnce = 16;
constexpr std::size_t kBytesAtOnce = std::size_t{64} << 20;  // of an answer
constexpr milliseconds kShortestPause{100};                  // before the next attempt to connect
constexpr milliseconds kLongestPause{2000};
constexpr std::size_t kMostUnread = std::size_t{256} << 20;  // bytes that are read ahead

}  // namespace

struct LogClient::Impl {
  Impl(LogAddress address, std::size_t most_bytes, std::uint64_t kept_free, LogOutage& outage,
       std::function<bool()> interrupted)
      : address(std::move(address)),
        key(this->address.keys()),
        most_bytes(most_bytes),
        kept_free(kept_free),
        outage(outage),
        entries_at_once(std::to_string(std::clamp<std::size_t>(kBytesAtOnce / most_bytes, 1, kMostEntriesAtOnce))),
        is_interrupted(std::move(interrupted)) {}

  void write(const std::stop_token& stop);
  void read(const std::stop_token& stop);
  void append_first();
  void read_more();
  void add_entries(RedisReply& entries);
  /// Calls `exchange` once the connection is open, and again and again until it succeeds. False if the thread is to
  /// end.
  bool insist(RedisConnection& connection, std::string& fault, const std::stop_token& stop,
              const std::function<void()>& exchange);
  void set_fault(std::string& fault, const std::string& now);
  void pause(milliseconds longest, const std::stop_token& stop);  ///< Until the thread is to end, if that comes first.

  const LogAddress address;
  const std::string key;
  const std::size_t most_bytes;
  const std::uint64_t kept_free;
  LogOutage& outage;
  const std::string entries_at_once;
  const std::function<bool()> is_interrupted;
  std::atomic<bool> has_started{false};
  std::atomic<bool> is_ending{false};
  RedisConnection writer{address, [this] { return has_started ? is_ending.load() : is_interrupted(); }};
  RedisConnection reader{address, [this] { return has_started ? is_ending.load() : is_interrupted(); }};
  std::string after = "0";  ///< For the reader's thread.

  mutable std::mutex mutex;  ///< Of all below.
  std::condition_variable_any changed;
  std::deque<std::string> unsent;  ///< The first one may be on its way.
  std::vector<Entry> unread;
  std::size_t unread_bytes = 0;
  std::string write_fault, read_fault;
  bool has_gap = false;
  std::uint64_t sent = 0, received = 0;

  std::jthread write_thread, read_thread;  ///< End first.
};

LogClient::LogClient(LogAddress address, std::size_t most_bytes, std::uint64_t kept_free, LogOutage& outage,
                     std::function<bool()> is_interrupted)
    : impl_(std::make_unique<Impl>(std::move(address), most_bytes, kept_free, outage, std::move(is_interrupted))) {
  require_redis(impl_->address);
  open_log(impl_->writer, impl_->address, impl_->is_interrupted);
  open_log(impl_->reader, impl_->address, impl_->is_interrupted);
}

LogClient::~LogClient() { impl_->is_ending = true; }

std::string LogClient::newest() {
  std::string position;
  ask_log(impl_->address, [&] {
    const RedisReply reply =
        impl_->reader.command({"XREVRANGE", impl_->key + kLogKey, "+", "-", "COUNT", "1"}, kLongReply);
    if (!reply.is_list_of(1) || !reply.elements[0].is_list_of(2)) return;
    const RedisReply& id = reply.elements[0].elements[0];
    if (id.is_text) position = id.text;
  });
  return position;
}

void LogClient::start(const std::string& after) {
  Impl* const impl = impl_.get();
  if (!after.empty()) impl->after = after;
  impl->has_started = true;
  impl->write_thread = std::jthread([impl](const std::stop_token& stop) { impl->write(stop); });
  impl->read_thread = std::jthread([impl](const std::stop_token& stop) { impl->read(stop); });
}

void LogClient::Impl::set_fault(std::string& fault, const std::string& now) {
  const std::lock_guard lock(mutex);
  fault = now;
}

void LogClient::Impl::pause(milliseconds longest, const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, stop, longest, [] { return false; });
}

bool LogClient::Impl::insist(RedisConnection& connection, std::string& fault, const std::stop_token& stop,
                             const std::function<void()>& exchange) {
  milliseconds until_next = kShortestPause;
  while (!stop.stop_requested()) {
    const bool was_open = connection.is_open();
    try {
      if (!was_open) connection.open();
      exchange();
      set_fault(fault, "");
      outage.answered(connection);
      return true;
    } catch (const RedisInterrupted&) {
      return false;
    } catch (const RedisFault& error) {
      if (was_open && !connection.is_open()) continue;  // it may be of an outage that has ended
      set_fault(fault, text_of(error));
      outage.failed(connection, error);
    }
    pause(until_next, stop);
    until_next = std::min(2 * until_next, kLongestPause);
  }
  return false;
}

void LogClient::Impl::write(const std::stop_token& stop) {
  while (true) {
    {
      std::unique_lock lock(mutex);
      if (!changed.wait(lock, stop, [this] { return !unsent.empty(); })) return;
    }
    if (!insist(writer, write_fault, stop, [this] { append_first(); })) return;
  }
}

void LogClient::Impl::append_first() {
  std::string_view next;  // a deque keeps its elements' places, and this thread alone removes any
  {
    const std::lock_guard lock(mutex);
    next = unsent.front();
  }
  if (kept_free > 0) require_memory(writer, kept_free + next.size(), "an entry and a snapshot");
  writer.command({"XADD", key + kLogKey, "*", "e", next});
  const std::lock_guard lock(mutex);
  sent += next.size();
  unsent.pop_front();
  changed.notify_all();
}

void LogClient::Impl::read(const std::stop_token& stop) {
  while (true) {
    {
      std::unique_lock lock(mutex);
      if (!changed.wait(lock, stop, [this] { return unread_bytes < kMostUnread && !has_gap; })) return;
    }
    if (!insist(reader, read_fault, stop, [this] { read_more(); })) return;
  }
}

void LogClient::Impl::read_more() {
  RedisReply reply = reader.command(
      {"XREAD", "COUNT", entries_at_once, "BLOCK", kReadWait, "STREAMS", key + kLogKey, after}, kLongReply);
  if (!reply.is_list) return;  // no entry has come
  if (!reply.is_list_of(1) || !reply.elements[0].is_list_of(2) || !reply.elements[0].elements[1].is_list) {
    throw RedisFault("an answer that is no stream");
  }
  // The position is set before entries are removed, so a position from before shows that the answer is whole.
  const RedisReply trimmed = reader.command({"GET", key + kTrimmedKey});
  if (trimmed.is_text && is_later(trimmed.text, after)) {
    const std::lock_guard lock(mutex);
    has_gap = true;
    changed.notify_all();
    return;
  }
  add_entries(reply.elements[0].elements[1]);
}

/// An entry without the one field that groups write, or too long, has no bytes, which are no entry.
void LogClient::Impl::add_entries(RedisReply& entries) {
  const std::lock_guard lock(mutex);
  for (RedisReply& entry : entries.elements) {
    if (!entry.is_list_of(2) || !entry.elements[0].is_text) throw RedisFault("an answer that is no stream");
    after = entry.elements[0].text;
    Entry& taken = unread.emplace_back(Entry{after, {}});
    std::vector<RedisReply>& fields = entry.elements[1].elements;
    if (fields.size() != 2 || !fields[0].is_text || !fields[1].is_text) continue;
    received += fields[1].text.size();
    if (fields[0].text != "e" || fields[1].text.size() > most_bytes) continue;
    taken.bytes = std::move(fields[1].text);
    unread_bytes += taken.bytes.size();
  }
  changed.notify_all();
}

void LogClient::append(std::string bytes) {
  const std::lock_guard lock(impl_->mutex);
  impl_->unsent.push_back(std::move(bytes));
  impl_->changed.notify_all();
}

std::vector<LogClient::Entry> LogClient::take() {
  const std::lock_guard lock(impl_->mutex);
  impl_->unread_bytes = 0;
  impl_->changed.notify_all();
  return std::exchange(impl_->unread, {});
}

bool LogClient::wait(milliseconds longest) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, longest, [this] { return !impl_->unread.empty() || impl_->has_gap; });
}

bool LogClient::flush(milliseconds longest) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, longest, [this] { return impl_->unsent.empty(); });
}

std::string LogClient::fault() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->write_fault.empty() ? impl_->read_fault : impl_->write_fault;
}

bool LogClient::has_gap() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->has_gap;
}

std::uint64_t LogClient::bytes_sent() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->sent;
}

std::uint64_t LogClient::bytes_received() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->received;
}

}  // namespace ddptrain
