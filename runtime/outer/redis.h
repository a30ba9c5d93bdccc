#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/outer/log_address.h"

/// Connections to a Redis server. No other part of the runtime knows Redis's library.

namespace ddptrain {

/// UsageError with the packages to install if this program was built without hiredis, or if the address asks for TLS
/// and it was built without that; UsageError if kLogAuthorityVariable is not set then.
void require_redis(const LogAddress& address);

/// A failed exchange with the server. The connection is closed.
class RedisFault : public Error {
 public:
  using Error::Error;
};

/// The server has answered, and refuses what was asked. The connection stays open.
class RedisRefusal : public RedisFault {
 public:
  using RedisFault::RedisFault;
};

/// The caller wanted no further waiting. The connection is closed.
class RedisInterrupted : public Error {
 public:
  using Error::Error;
};

struct RedisReply {
  bool is_text = false;
  std::string text;
  bool is_list = false;
  std::vector<RedisReply> elements;  ///< Of a list.

  bool is_list_of(std::size_t count) const { return is_list && elements.size() == count; }
};

/// In faults of TLS: the server has no certificate that this program accepts, or does not answer as TLS does.
inline constexpr const char* kCertificateFault = "certificate of the server";
inline constexpr const char* kNoTlsFault = "no TLS";

/// Bytes of a whole answer: of one without entries of the log (the largest is a list of snapshots), and of one with
/// entries.
inline constexpr std::size_t kShortReply = std::size_t{64} << 20;
inline constexpr std::size_t kLongReply = std::size_t{1} << 30;

/// One connection, for one thread. With TLS, the certificate of the server must be for the host in the address, and be
/// signed by an authority in the file that kLogAuthorityVariable names.
class RedisConnection {
 public:
  /// While the server is waited for, `is_interrupted` is called several times a second. Once it returns true, methods
  /// throw RedisInterrupted. The address outlives the connection.
  RedisConnection(const LogAddress& address, std::function<bool()> is_interrupted);
  ~RedisConnection();
  RedisConnection(const RedisConnection&) = delete;
  RedisConnection& operator=(const RedisConnection&) = delete;

  bool is_open() const;
  void close();
  /// RedisFault if an answer is not complete within 5 s.
  void open();
  /// RedisFault if no byte is sent or received for 10 s, or longer fewer than 8 kB/s, or if the answer has more than
  /// `most` bytes or a line without an end; RedisRefusal if the answer is an error.
  RedisReply command(const std::vector<std::string_view>& words, std::size_t most = kShortReply);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain
