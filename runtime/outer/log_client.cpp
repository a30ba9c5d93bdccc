#include "runtime/outer/log_client.h"

#include <hiredis.h>
#ifdef DDPTRAIN_HIREDIS_TLS
#include <hiredis_ssl.h>
#endif
#include <spdlog/spdlog.h>

#include <algorithm>
#include <condition_variable>
#include <cstdlib>
#include <deque>
#include <mutex>
#include <stop_token>
#include <string_view>
#include <thread>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

constexpr timeval kConnectTime = {5, 0};
constexpr timeval kReplyTime = {30, 0};   // for a large entry on a slow network
constexpr const char* kReadWait = "200";  // milliseconds for which the server holds back an empty answer
constexpr std::size_t kMostEntriesAtOnce = 16;
constexpr std::size_t kBytesAtOnce = std::size_t{64} << 20;  // of an answer
constexpr milliseconds kShortestPause{100};                  // before the next attempt to connect
constexpr milliseconds kLongestPause{2000};
constexpr std::size_t kMostUnread = std::size_t{256} << 20;  // bytes that are read ahead

/// A failed exchange with the server. The connection cannot be used further.
class LogFault : public Error {
 public:
  using Error::Error;
};

/// The server has answered, and refuses what was asked.
class LogRefusal : public LogFault {
 public:
  using LogFault::LogFault;
};

/// Redis ends some messages with a full stop, and they become parts of sentences.
std::string without_stop(std::string text) {
  while (text.ends_with('.')) text.pop_back();
  return text;
}

using Reply = std::unique_ptr<redisReply, void (*)(redisReply*)>;

std::string_view text_in(const redisReply& reply) { return {reply.str, reply.len}; }

bool is_text(const redisReply* reply) { return reply != nullptr && reply->type == REDIS_REPLY_STRING; }

bool is_array(const redisReply* reply, std::size_t elements) {
  return reply != nullptr && reply->type == REDIS_REPLY_ARRAY && reply->elements == elements;
}

/// One connection, for one thread.
class Connection {
 public:
  explicit Connection(const LogAddress& address) : address_(address) {}

  bool is_open() const { return context_ != nullptr; }

  /// LogFault if there is no answer.
  void open() {
    context_.reset(redisConnectWithTimeout(address_.host.c_str(), address_.port, kConnectTime));
    try {
      if (!context_) throw LogFault("no memory for a connection");
      check_context();
      redisEnableKeepAlive(context_.get());
      redisSetTimeout(context_.get(), kReplyTime);
      if (address_.tls) start_tls();
      if (!address_.password.empty()) log_in();
      do_command({"PING"});
    } catch (const LogFault&) {
      context_.reset();
      throw;
    }
  }

  void close() { context_.reset(); }

  /// LogFault if there is no answer or an error.
  Reply do_command(const std::vector<std::string_view>& words) {
    std::vector<const char*> pointers;
    std::vector<std::size_t> lengths;
    for (const std::string_view word : words) {
      pointers.push_back(word.data());
      lengths.push_back(word.size());
    }
    void* const answer =
        redisCommandArgv(context_.get(), static_cast<int>(words.size()), pointers.data(), lengths.data());
    Reply reply(static_cast<redisReply*>(answer), [](redisReply* r) { freeReplyObject(r); });
    check_context();
    if (!reply) throw LogFault("no answer");
    if (reply->type == REDIS_REPLY_ERROR) throw LogRefusal(without_stop(printable(text_in(*reply), 200)));
    return reply;
  }

 private:
  void check_context() const {
    if (context_->err != 0) throw LogFault(printable(context_->errstr));
  }

  void log_in() {
    if (address_.user.empty()) {
      do_command({"AUTH", address_.password});
    } else {
      do_command({"AUTH", address_.user, address_.password});
    }
  }

  void start_tls();

  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
  };
  const LogAddress& address_;
#ifdef DDPTRAIN_HIREDIS_TLS
  struct FreeTls {
    void operator()(redisSSLContext* tls) const { redisFreeSSLContext(tls); }
  };
  std::unique_ptr<redisSSLContext, FreeTls> tls_;  ///< Outlives the connection.
#endif
  std::unique_ptr<redisContext, Free> context_;
};

#ifdef DDPTRAIN_HIREDIS_TLS
/// hiredis does not compare the name in the certificate with the host, so the authorities of the machine are not
/// enough: only the certificate authority in the file counts.
void Connection::start_tls() {
  redisSSLContextError error = REDIS_SSL_CTX_NONE;
  if (!tls_) {
    redisInitOpenSSL();
    tls_.reset(redisCreateSSLContext(std::getenv(kLogAuthorityVariable), nullptr, nullptr, nullptr,
                                     address_.host.c_str(), &error));
    if (!tls_) throw LogFault(fmt::format("{}: {}", kLogAuthorityVariable, redisSSLContextGetError(error)));
  }
  redisInitiateSSLWithContext(context_.get(), tls_.get());
  check_context();
}
#else
void Connection::start_tls() { require_log_client(address_); }
#endif

}  // namespace

void require_log_client(const LogAddress& address) {
#ifndef DDPTRAIN_HIREDIS_TLS
  if (!address.tls) return;
  usage_error(
      "{}: this program was built with hiredis {}.{}.{}, which has no TLS. Use a hiredis with libhiredis_ssl (1.0 or "
      "newer), or redis:// through an ssh tunnel.",
      address.text(), HIREDIS_MAJOR, HIREDIS_MINOR, HIREDIS_PATCH);
#else
  if (!address.tls || std::getenv(kLogAuthorityVariable) != nullptr) return;
  usage_error("{}: set the environment variable {} to the file with the certificate authority of the log",
              address.text(), kLogAuthorityVariable);
#endif
}

struct LogClient::Impl {
  Impl(LogAddress address, std::size_t most_bytes)
      : address(std::move(address)),
        key("ddptrain:" + this->address.name + ":"),
        most_bytes(most_bytes),
        entries_at_once(std::to_string(std::clamp<std::size_t>(kBytesAtOnce / most_bytes, 1, kMostEntriesAtOnce))) {}

  void write(const std::stop_token& stop);
  void read(const std::stop_token& stop);
  /// Opens the connection again and again until it is open. False if the thread is to end.
  bool reconnect(Connection& connection, std::string& fault, const std::stop_token& stop);
  void lost(Connection& connection, std::string& fault, const LogFault& error);
  void pause(milliseconds longest, const std::stop_token& stop);  ///< Until the thread is to end, if that comes first.
  void add_entries(const redisReply& stream);

  const LogAddress address;
  const std::string key;
  const std::size_t most_bytes;
  const std::string entries_at_once;
  Connection writer{address};
  Connection reader{address};
  std::string after = "0";  ///< For the reader's thread.

  mutable std::mutex mutex;  ///< Of all below.
  std::condition_variable_any changed;
  std::deque<std::string> unsent;  ///< The first one may be on its way.
  std::vector<Entry> unread;
  std::size_t unread_bytes = 0;
  std::string write_fault, read_fault;
  std::uint64_t sent = 0, received = 0;

  std::jthread write_thread, read_thread;  ///< End first.
};

LogClient::LogClient(LogAddress address, std::size_t most_bytes)
    : impl_(std::make_unique<Impl>(std::move(address), most_bytes)) {
  require_log_client(impl_->address);
  try {
    impl_->writer.open();
    impl_->reader.open();
  } catch (const LogFault& error) {
    const std::string what = error.what();
    const bool password =
        what.find("NOAUTH") != what.npos || what.find("WRONGPASS") != what.npos || what.find("AUTH") != what.npos;
    usage_error("{}: {}. {}", impl_->address.text(), what,
                password
                    ? fmt::format("Set the environment variable {} to the password of the log.", kLogPasswordVariable)
                    : std::string("launch/outer-log starts a server."));
  }
}

LogClient::~LogClient() = default;

std::string LogClient::settings(const std::string& mine) {
  try {
    const std::string key = impl_->key + "run";
    impl_->writer.do_command({"SET", key, mine, "NX"});
    const Reply found = impl_->writer.do_command({"GET", key});
    if (!is_text(found.get())) throw LogFault("the settings of the run are missing");
    return std::string(text_in(*found));
  } catch (const LogFault& error) {
    usage_error("{}: {}", impl_->address.text(), error.what());
  }
}

bool LogClient::is_finished() {
  try {
    return is_text(impl_->writer.do_command({"GET", impl_->key + "finished"}).get());
  } catch (const LogFault& error) {
    usage_error("{}: {}", impl_->address.text(), error.what());
  }
}

void LogClient::set_finished() {
  try {
    Connection connection(impl_->address);  // the others belong to the threads
    connection.open();
    connection.do_command({"SET", impl_->key + "finished", "yes"});
  } catch (const LogFault& error) {
    spdlog::warn("The log {} does not know that the run is finished: {}", impl_->address.text(), error.what());
  }
}

std::string LogClient::newest() {
  try {
    const Reply reply = impl_->reader.do_command({"XREVRANGE", impl_->key + "log", "+", "-", "COUNT", "1"});
    if (!is_array(reply.get(), 1) || !is_array(reply->element[0], 2)) return {};
    const redisReply* const id = reply->element[0]->element[0];
    return is_text(id) ? std::string(text_in(*id)) : std::string();
  } catch (const LogFault& error) {
    usage_error("{}: {}", impl_->address.text(), error.what());
  }
}

void LogClient::start(const std::string& after) {
  Impl* const impl = impl_.get();
  if (!after.empty()) impl->after = after;
  impl->write_thread = std::jthread([impl](const std::stop_token& stop) { impl->write(stop); });
  impl->read_thread = std::jthread([impl](const std::stop_token& stop) { impl->read(stop); });
}

void LogClient::Impl::lost(Connection& connection, std::string& fault, const LogFault& error) {
  connection.close();
  const std::lock_guard lock(mutex);
  const bool is_first = fault.empty();
  fault = error.what();
  if (is_first) spdlog::warn("The log {} is out of reach: {}", address.text(), fault);
}

bool LogClient::Impl::reconnect(Connection& connection, std::string& fault, const std::stop_token& stop) {
  milliseconds until_next = kShortestPause;
  while (!stop.stop_requested()) {
    try {
      if (!connection.is_open()) connection.open();
      const std::lock_guard lock(mutex);
      if (!fault.empty()) spdlog::info("The log {} answers again", address.text());
      fault.clear();
      return true;
    } catch (const LogFault& error) {
      lost(connection, fault, error);
    }
    pause(until_next, stop);
    until_next = std::min(2 * until_next, kLongestPause);
  }
  return false;
}

void LogClient::Impl::pause(milliseconds longest, const std::stop_token& stop) {
  std::unique_lock lock(mutex);
  changed.wait_for(lock, stop, longest, [] { return false; });
}

void LogClient::Impl::write(const std::stop_token& stop) {
  const std::string stream = key + "log";
  while (true) {
    std::string_view next;  // a deque keeps its elements' places, and this thread alone removes any
    {
      std::unique_lock lock(mutex);
      if (!changed.wait(lock, stop, [this] { return !unsent.empty(); })) return;
      next = unsent.front();
    }
    if (!reconnect(writer, write_fault, stop)) return;
    try {
      writer.do_command({"XADD", stream, "*", "e", next});
      const std::lock_guard lock(mutex);
      sent += next.size();
      unsent.pop_front();
      changed.notify_all();
    } catch (const LogRefusal& error) {  // such as no memory left: the same again later
      lost(writer, write_fault, error);
      pause(kLongestPause, stop);
    } catch (const LogFault& error) {
      lost(writer, write_fault, error);
    }
  }
}

void LogClient::Impl::read(const std::stop_token& stop) {
  const std::string stream = key + "log";
  while (!stop.stop_requested()) {
    {
      std::unique_lock lock(mutex);
      if (!changed.wait(lock, stop, [this] { return unread_bytes < kMostUnread; })) return;
    }
    if (!reconnect(reader, read_fault, stop)) return;
    try {
      const Reply reply =
          reader.do_command({"XREAD", "COUNT", entries_at_once, "BLOCK", kReadWait, "STREAMS", stream, after});
      if (reply->type == REDIS_REPLY_NIL) continue;
      if (!is_array(reply.get(), 1) || !is_array(reply->element[0], 2)) throw LogFault("an answer that is no stream");
      add_entries(*reply->element[0]);
    } catch (const LogRefusal& error) {
      lost(reader, read_fault, error);
      pause(kLongestPause, stop);
    } catch (const LogFault& error) {
      lost(reader, read_fault, error);
    }
  }
}

/// An entry without the one field that groups write, or too long, has no bytes, which are no entry.
void LogClient::Impl::add_entries(const redisReply& stream) {
  const redisReply* const entries = stream.element[1];
  if (entries == nullptr || entries->type != REDIS_REPLY_ARRAY) throw LogFault("an answer that is no stream");
  const std::lock_guard lock(mutex);
  for (std::size_t i = 0; i < entries->elements; ++i) {
    const redisReply* const entry = entries->element[i];
    if (!is_array(entry, 2) || !is_text(entry->element[0])) throw LogFault("an answer that is no stream");
    after = text_in(*entry->element[0]);
    Entry& taken = unread.emplace_back(Entry{after, {}});
    const redisReply* const fields = entry->element[1];
    if (!is_array(fields, 2) || !is_text(fields->element[0]) || !is_text(fields->element[1])) continue;
    const std::string_view bytes = text_in(*fields->element[1]);
    received += bytes.size();
    if (text_in(*fields->element[0]) != "e" || bytes.size() > most_bytes) continue;
    taken.bytes = bytes;
    unread_bytes += bytes.size();
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
  return impl_->changed.wait_for(lock, longest, [this] { return !impl_->unread.empty(); });
}

bool LogClient::flush(milliseconds longest) {
  std::unique_lock lock(impl_->mutex);
  return impl_->changed.wait_for(lock, longest, [this] { return impl_->unsent.empty(); });
}

std::string LogClient::fault() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->write_fault.empty() ? impl_->read_fault : impl_->write_fault;
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
