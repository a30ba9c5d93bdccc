#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

/// The log that groups share: a stream of Redis. No other part of the runtime knows Redis.

namespace ddptrain {

struct LogAddress {
  std::string host;
  int port = 6379;
  bool tls = false;
  std::string user;      ///< Empty: Redis's default user.
  std::string password;  ///< Empty: none.
  std::string name;      ///< Of the run in the server. Its keys begin with "ddptrain:NAME:".

  std::string text() const;  ///< Without the password.
};

/// Reads redis://[USER@]HOST[:PORT]/NAME, or rediss:// for TLS. The password is taken from the environment variable
/// kLogPasswordVariable. UsageError if the URL has one, because other users of the machine could read it.
LogAddress parse_log_address(const std::string& url);
inline constexpr const char* kLogPasswordVariable = "DDPTRAIN_OUTER_PASSWORD";
/// Of the file with the certificate authority whose certificates rediss:// accepts.
inline constexpr const char* kLogAuthorityVariable = "DDPTRAIN_OUTER_CA";

/// UsageError with the package to install if this program was built without hiredis, if it cannot connect with TLS and
/// the address asks for it, or if kLogAuthorityVariable is not set then.
void require_log_client(const LogAddress& address);

/// A connection to the log for appending and one for reading, each in a thread of its own. Both reconnect when a
/// connection is lost. An entry is appended again if the connection was lost before the server acknowledged it, so an
/// entry may be in the log twice. Methods are called by one thread.
class LogClient {
 public:
  struct Entry {
    std::string id;  ///< Position in the log. Later entries have larger ones, but not as texts.
    std::string bytes;
  };

  /// Connects. UsageError, naming the address, if the server does not answer or refuses the password. Entries of more
  /// than `most_bytes` are dropped as they come.
  LogClient(LogAddress address, std::size_t most_bytes);
  ~LogClient();  ///< Entries that are not acknowledged are lost. Waits up to a second for the threads.
  LogClient(const LogClient&) = delete;
  LogClient& operator=(const LogClient&) = delete;

  /// The settings of the run: `mine` if no group has set them before, else those of the first group. Before start().
  std::string settings(const std::string& mine);
  /// Whether a group has called set_finished(). Before start().
  bool is_finished();
  /// Notes in the server that the run is finished, on a connection of its own. A warning if the server does not take
  /// it.
  void set_finished();
  /// The position of the last entry in the log; empty if there is none. Before start().
  std::string newest();
  /// Starts to read the entries after position `after`; empty: all.
  void start(const std::string& after);

  void append(std::string bytes);
  /// The entries that have come since the last call, in the order of the log.
  std::vector<Entry> take();
  /// Waits until an entry can be taken, at most so long. Whether one can be.
  bool wait(std::chrono::milliseconds longest);
  /// Waits until every appended entry is acknowledged, at most so long. Whether that is so.
  bool flush(std::chrono::milliseconds longest);

  /// Why the server is out of reach now; empty if both connections work.
  std::string fault() const;
  std::uint64_t bytes_sent() const;      ///< Of acknowledged entries.
  std::uint64_t bytes_received() const;  ///< Of entries that were read.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain
