#include "runtime/outer/redis.h"

#include <fcntl.h>
#include <hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#ifdef DDPTRAIN_HIREDIS_TLS
#include <hiredis_ssl.h>
#endif

#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kConnectTime{5000};
constexpr milliseconds kReplyTime{10000};  // without a byte in either direction
constexpr milliseconds kSlice{100};        // between looks at is_interrupted()
constexpr timeval kSocketTime = {1, 0};    // for a call that poll() has said is possible
constexpr timeval kTlsTime = {10, 0};      // for a record of TLS

/// Redis ends some messages with a full stop, and they become parts of sentences.
std::string without_stop(std::string text) {
  while (text.ends_with('.')) text.pop_back();
  return text;
}

RedisReply reply_of(const redisReply& from) {
  RedisReply reply;
  if (from.type == REDIS_REPLY_STRING || from.type == REDIS_REPLY_STATUS) {
    reply.is_text = true;
    reply.text.assign(from.str, from.len);
  } else if (from.type == REDIS_REPLY_ARRAY) {
    reply.is_list = true;
    for (std::size_t i = 0; i < from.elements; ++i) reply.elements.push_back(reply_of(*from.element[i]));
  }
  return reply;
}

}  // namespace

struct RedisConnection::Impl {
  Impl(const LogAddress& address, std::function<bool()> is_interrupted)
      : address(address), is_interrupted(std::move(is_interrupted)) {}

  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
#ifdef DDPTRAIN_HIREDIS_TLS
    void operator()(redisSSLContext* tls) const { redisFreeSSLContext(tls); }
#endif
  };

  void check_context() const {
    if (context->err != 0) throw RedisFault(printable(context->errstr));
  }
  void connect();
  void log_in();
  void start_tls();
  void wait_for(short events, Clock::time_point deadline, milliseconds longest) const;
  void send();
  std::unique_ptr<redisReply, Free> receive();
  RedisReply command(const std::vector<std::string_view>& words);

  const LogAddress& address;
  std::function<bool()> is_interrupted;
  milliseconds limit = kReplyTime;
#ifdef DDPTRAIN_HIREDIS_TLS
  std::unique_ptr<redisSSLContext, Free> tls;  ///< Outlives the connection.
#endif
  std::unique_ptr<redisContext, Free> context;
};

/// Waits until the socket can be read from or written to.
void RedisConnection::Impl::wait_for(short events, Clock::time_point deadline, milliseconds longest) const {
  while (true) {
    if (is_interrupted()) throw RedisInterrupted("interrupted");
    pollfd socket = {context->fd, events, 0};
    if (poll(&socket, 1, static_cast<int>(kSlice.count())) > 0) return;
    if (Clock::now() >= deadline) {
      throw RedisFault(fmt::format("the server does not answer within {} s", longest.count() / 1000));
    }
  }
}

/// hiredis connects without blocking, so that the wait can be interrupted. Later calls block, after poll().
void RedisConnection::Impl::connect() {
  context.reset(redisConnectNonBlock(address.host.c_str(), address.port));
  if (!context) throw RedisFault("no memory for a connection");
  check_context();
  wait_for(POLLOUT, Clock::now() + kConnectTime, kConnectTime);
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(context->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) throw RedisFault(std::strerror(error));
  const int flags = fcntl(context->fd, F_GETFL);
  if (flags < 0 || fcntl(context->fd, F_SETFL, flags & ~O_NONBLOCK) != 0) throw RedisFault(std::strerror(errno));
  context->flags |= REDIS_BLOCK;
  redisEnableKeepAlive(context.get());
  redisSetTimeout(context.get(), address.tls ? kTlsTime : kSocketTime);
}

void RedisConnection::Impl::log_in() {
  if (address.password.empty()) return;
  if (address.user.empty()) {
    command({"AUTH", address.password});
  } else {
    command({"AUTH", address.user, address.password});
  }
}

#ifdef DDPTRAIN_HIREDIS_TLS
/// hiredis does not compare the name in the certificate with the host, so the authorities of the machine are not
/// enough: only the certificate authority in the file counts.
void RedisConnection::Impl::start_tls() {
  redisSSLContextError error = REDIS_SSL_CTX_NONE;
  if (!tls) {
    redisInitOpenSSL();
    tls.reset(redisCreateSSLContext(std::getenv(kLogAuthorityVariable), nullptr, nullptr, nullptr, address.host.c_str(),
                                    &error));
    if (!tls) throw RedisFault(fmt::format("{}: {}", kLogAuthorityVariable, redisSSLContextGetError(error)));
  }
  redisInitiateSSLWithContext(context.get(), tls.get());
  check_context();
}
#else
void RedisConnection::Impl::start_tls() { require_redis(address); }
#endif

void RedisConnection::Impl::send() {
  int is_done = 0;
  while (is_done == 0) {
    wait_for(POLLOUT, Clock::now() + limit, limit);
    redisBufferWrite(context.get(), &is_done);
    check_context();
  }
}

std::unique_ptr<redisReply, RedisConnection::Impl::Free> RedisConnection::Impl::receive() {
  while (true) {
    void* answer = nullptr;
    redisReaderGetReply(context->reader, &answer);
    if (context->reader->err != 0) throw RedisFault(printable(context->reader->errstr));
    if (answer != nullptr) return std::unique_ptr<redisReply, Free>(static_cast<redisReply*>(answer));
    wait_for(POLLIN, Clock::now() + limit, limit);
    redisBufferRead(context.get());
    check_context();
  }
}

RedisReply RedisConnection::Impl::command(const std::vector<std::string_view>& words) {
  std::vector<const char*> pointers;
  std::vector<std::size_t> lengths;
  for (const std::string_view word : words) {
    pointers.push_back(word.data());
    lengths.push_back(word.size());
  }
  redisAppendCommandArgv(context.get(), static_cast<int>(words.size()), pointers.data(), lengths.data());
  check_context();
  send();
  const auto reply = receive();
  if (reply->type == REDIS_REPLY_ERROR) {
    throw RedisRefusal(without_stop(printable(std::string_view(reply->str, reply->len), 200)));
  }
  return reply_of(*reply);
}

void require_redis(const LogAddress& address) {
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

RedisConnection::RedisConnection(const LogAddress& address, std::function<bool()> is_interrupted)
    : impl_(std::make_unique<Impl>(address, std::move(is_interrupted))) {}

RedisConnection::~RedisConnection() = default;

bool RedisConnection::is_open() const { return impl_->context != nullptr; }

void RedisConnection::close() { impl_->context.reset(); }

void RedisConnection::open() {
  try {
    impl_->limit = kConnectTime;
    impl_->connect();
    if (impl_->address.tls) impl_->start_tls();
    impl_->log_in();
    impl_->command({"PING"});
    impl_->limit = kReplyTime;
  } catch (const Error&) {
    close();
    throw;
  }
}

RedisReply RedisConnection::command(const std::vector<std::string_view>& words) {
  try {
    return impl_->command(words);
  } catch (const RedisRefusal&) {
    throw;
  } catch (const Error&) {
    close();
    throw;
  }
}

}  // namespace ddptrain
