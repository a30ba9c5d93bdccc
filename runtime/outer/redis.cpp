#include "runtime/outer/redis.h"

#include <fcntl.h>
#include <hiredis.h>
#include <poll.h>
#include <sys/socket.h>
#ifdef DDPTRAIN_HIREDIS_TLS
#include <hiredis_ssl.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#endif

#include <algorithm>
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
constexpr std::size_t kLeastRate = 8;      // bytes per millisecond, of what takes longer
constexpr std::size_t kMostLine = 65536;   // bytes of an answer's line, which has a number or a short text
constexpr milliseconds kSlice{100};        // between looks at is_interrupted()
constexpr timeval kSocketTime = {1, 0};    // for a call that poll() has said is possible

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

#ifdef DDPTRAIN_HIREDIS_TLS
RedisFault handshake_fault(const SSL& session) {
  if (const long verdict = SSL_get_verify_result(&session); verdict != X509_V_OK) {
    return RedisFault(fmt::format("{}: {}", kCertificateFault, X509_verify_cert_error_string(verdict)));
  }
  const char* const reason = ERR_reason_error_string(ERR_peek_last_error());
  return RedisFault(fmt::format("{}: {}", kNoTlsFault, reason == nullptr ? "Server closed the connection" : reason));
}
#endif

}  // namespace

struct RedisConnection::Impl {
  Impl(const LogAddress& address, std::function<bool()> is_interrupted)
      : address(address), is_interrupted(std::move(is_interrupted)) {}

  struct Free {
    void operator()(redisContext* context) const { redisFree(context); }
    void operator()(redisReply* reply) const { freeReplyObject(reply); }
#ifdef DDPTRAIN_HIREDIS_TLS
    void operator()(SSL_CTX* tls) const { SSL_CTX_free(tls); }
    void operator()(SSL* session) const { SSL_free(session); }
#endif
  };

  void check_context() const;
  void connect();
  void log_in();
  void start_tls();
  void wait_for(short events, Clock::time_point deadline, milliseconds longest, bool has_begun = false) const;
  void send(std::size_t bytes);
  void check_answer(std::size_t received, std::size_t most) const;
  std::unique_ptr<redisReply, Free> receive(std::size_t most);
  RedisReply command(const std::vector<std::string_view>& words, std::size_t most = kShortReply);

  const LogAddress& address;
  std::function<bool()> is_interrupted;
  milliseconds limit = kReplyTime;
  bool is_opening = false;  ///< Then answers are short, and `limit` is for a whole one.
#ifdef DDPTRAIN_HIREDIS_TLS
  void load_authority();
  std::unique_ptr<SSL, Free> new_session() const;
  void shake_hands(SSL& session) const;

  std::unique_ptr<SSL_CTX, Free> tls;
#endif
  std::unique_ptr<redisContext, Free> context;
};

void RedisConnection::Impl::check_context() const {
  if (context->err == 0) return;
#ifdef DDPTRAIN_HIREDIS_TLS
  if (const char* const reason = ERR_reason_error_string(ERR_peek_last_error())) throw RedisFault(reason);
#endif
  throw RedisFault(printable(context->errstr));
}

/// Waits until the socket can be read from or written to. `has_begun`: the server has sent a part of its answer.
void RedisConnection::Impl::wait_for(short events, Clock::time_point deadline, milliseconds longest,
                                     bool has_begun) const {
  pollfd socket = {context->fd, events, 0};
  do {
    if (is_interrupted()) throw RedisInterrupted("interrupted");
    if (Clock::now() >= deadline) {  // before poll(), which does not wait for a server that always sends
      if (has_begun) throw RedisFault("the server answers too slowly");
      throw RedisFault(fmt::format("the server does not answer within {} s", longest.count() / 1000));
    }
  } while (poll(&socket, 1, static_cast<int>(kSlice.count())) <= 0);
}

/// hiredis connects without blocking, so that the wait can be interrupted. Later calls block, after poll(): a large
/// command is written at once, of which hiredis would move the rest to the front after each piece. With TLS it does
/// not, and calls never block, because a record may have no answer in it.
void RedisConnection::Impl::connect() {
  context.reset(redisConnectNonBlock(address.host.c_str(), address.port));
  if (!context) throw RedisFault("no memory for a connection");
  check_context();
  wait_for(POLLOUT, Clock::now() + kConnectTime, kConnectTime);
  int error = 0;
  socklen_t size = sizeof(error);
  if (getsockopt(context->fd, SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
  if (error != 0) throw RedisFault(std::strerror(error));
  redisEnableKeepAlive(context.get());
  if (address.tls) return;
  const int flags = fcntl(context->fd, F_GETFL);
  if (flags < 0 || fcntl(context->fd, F_SETFL, flags & ~O_NONBLOCK) != 0) throw RedisFault(std::strerror(errno));
  context->flags |= REDIS_BLOCK;
  redisSetTimeout(context.get(), kSocketTime);
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
/// hiredis's own contexts do not compare the name in the certificate with the host.
void RedisConnection::Impl::start_tls() {
  ERR_clear_error();
  if (!tls) load_authority();
  std::unique_ptr<SSL, Free> owned = new_session();
  SSL* const session = owned.get();
  if (redisInitiateSSL(context.get(), session) != REDIS_OK) throw handshake_fault(*session);
  owned.release();  // now the connection's
  shake_hands(*session);
}

void RedisConnection::Impl::load_authority() {
  std::unique_ptr<SSL_CTX, Free> made(SSL_CTX_new(TLS_client_method()));
  if (!made) throw RedisFault("no memory for TLS");
  SSL_CTX_set_min_proto_version(made.get(), TLS1_2_VERSION);
  SSL_CTX_set_verify(made.get(), SSL_VERIFY_PEER, nullptr);
  const char* const file = std::getenv(kLogAuthorityVariable);
  if (file == nullptr || SSL_CTX_load_verify_locations(made.get(), file, nullptr) != 1) {
    const std::string name = printable(file == nullptr ? "" : file);
    throw RedisFault(fmt::format("{}={}: this file cannot be read as certificates", kLogAuthorityVariable, name));
  }
  tls = std::move(made);
}

/// It accepts certificates of the host in the address alone.
std::unique_ptr<SSL, RedisConnection::Impl::Free> RedisConnection::Impl::new_session() const {
  std::unique_ptr<SSL, Free> session(SSL_new(tls.get()));
  if (!session) throw RedisFault("no memory for TLS");
  const char* const host = address.host.c_str();
  if (X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(session.get()), host) == 1) return session;
  if (SSL_set1_host(session.get(), host) != 1 || SSL_set_tlsext_host_name(session.get(), host) != 1) {
    throw RedisFault("no memory for TLS");
  }
  return session;
}

void RedisConnection::Impl::shake_hands(SSL& session) const {
  const Clock::time_point deadline = Clock::now() + kConnectTime;
  while (true) {
    ERR_clear_error();
    const int result = SSL_do_handshake(&session);
    if (result == 1) return;
    const int error = SSL_get_error(&session, result);
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      try {
        wait_for(error == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT, deadline, kConnectTime);
      } catch (const RedisFault& fault) {
        throw RedisFault(fmt::format("{}: {}", kNoTlsFault, fault.what()));
      }
      continue;
    }
    throw handshake_fault(session);
  }
}
#else
void RedisConnection::Impl::start_tls() { require_redis(address); }
#endif

/// Of a command of this size.
void RedisConnection::Impl::send(std::size_t bytes) {
  const Clock::time_point end = Clock::now() + limit + milliseconds(bytes / kLeastRate);
  int is_done = 0;
  while (is_done == 0) {
    if (Clock::now() > end) throw RedisFault("the server takes a command too slowly");
    wait_for(POLLOUT, Clock::now() + limit, limit);
    redisBufferWrite(context.get(), &is_done);
    check_context();
  }
}

/// hiredis keeps what it cannot parse yet, and waits for its end: a line that has none, or a text of any length.
void RedisConnection::Impl::check_answer(std::size_t received, std::size_t most) const {
  const redisReader& reader = *context->reader;
  if (received > most) throw RedisFault(fmt::format("Protocol error, an answer of more than {}", size_text(most)));
  const std::string_view rest(reader.buf + reader.pos, reader.len - reader.pos);
  if (rest.size() > kMostLine && rest.substr(0, kMostLine).find('\n') == rest.npos) {
    throw RedisFault(fmt::format("Protocol error, a line of more than {} bytes", kMostLine));
  }
}

std::unique_ptr<redisReply, RedisConnection::Impl::Free> RedisConnection::Impl::receive(std::size_t most) {
  const Clock::time_point start = Clock::now();
  redisReader& reader = *context->reader;
  std::size_t received = 0;
  while (true) {
    void* answer = nullptr;
    redisReaderGetReply(&reader, &answer);
    if (reader.err != 0) throw RedisFault(printable(reader.errstr));
    if (answer != nullptr) return std::unique_ptr<redisReply, Free>(static_cast<redisReply*>(answer));
    check_answer(received, most);
    const milliseconds for_bytes(is_opening ? 0 : received / kLeastRate);
    wait_for(POLLIN, std::min(start + for_bytes, Clock::now()) + limit, limit, received > 0);
    const std::size_t before = reader.len;
    redisBufferRead(context.get());
    received += reader.len - before;
    check_context();
  }
}

RedisReply RedisConnection::Impl::command(const std::vector<std::string_view>& words, std::size_t most) {
  std::vector<const char*> pointers;
  std::vector<std::size_t> lengths;
  std::size_t bytes = 0;
  for (const std::string_view word : words) {
    pointers.push_back(word.data());
    lengths.push_back(word.size());
    bytes += word.size();
  }
  redisAppendCommandArgv(context.get(), static_cast<int>(words.size()), pointers.data(), lengths.data());
  check_context();
  send(bytes);
  const auto reply = receive(most);
  if (reply->type == REDIS_REPLY_ERROR) {
    throw RedisRefusal(without_stop(printable(std::string_view(reply->str, reply->len), 200)));
  }
  return reply_of(*reply);
}

void require_redis(const LogAddress& address) {
#ifndef DDPTRAIN_HIREDIS_TLS
  if (!address.tls) return;
  usage_error(
      "{}: this program was built without TLS (hiredis {}.{}.{}). Install hiredis 1.0 or newer with "
      "libhiredis_ssl, and libssl-dev, configure with cmake again, and build. Debian 13 and Ubuntu 24.04 have them. Or "
      "use redis:// through an ssh tunnel.",
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
    impl_->is_opening = true;
    impl_->connect();
    if (impl_->address.tls) impl_->start_tls();
    impl_->log_in();
    impl_->command({"PING"});
    impl_->limit = kReplyTime;
    impl_->is_opening = false;
  } catch (const Error&) {
    close();
    throw;
  }
}

RedisReply RedisConnection::command(const std::vector<std::string_view>& words, std::size_t most) {
  try {
    return impl_->command(words, most);
  } catch (const RedisRefusal&) {
    throw;
  } catch (const Error&) {
    close();
    throw;
  }
}

}  // namespace ddptrain
