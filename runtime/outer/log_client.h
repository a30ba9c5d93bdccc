#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/outer/log_address.h"

/// The log that groups share: a stream of Redis.

namespace ddptrain {

class LogOutage;

/// A connection to the log for appending and one for reading, each in a thread of its own. Both reconnect when a
/// connection is lost. An entry is appended again if the connection was lost before the server acknowledged it, so an
/// entry may be in the log twice. Methods are called by one thread.
class LogClient {
 public:
  struct Entry {
    std::string id;  ///< Position in the log: see is_later().
    std::string bytes;
  };

  /// Connects; waits while the server reads its file. UsageError, naming the address, if the server does not answer or
  /// refuses the password. Entries of more than `most_bytes` are dropped as they come. No entry is appended that would
  /// leave the server fewer than `kept_free` bytes. Until start(), methods that wait throw RedisInterrupted once
  /// `is_interrupted` returns true. `outage` outlives the object.
  LogClient(LogAddress address, std::size_t most_bytes, std::uint64_t kept_free, LogOutage& outage,
            std::function<bool()> is_interrupted);
  ~LogClient();  ///< Entries that are not acknowledged are lost. Waits up to a second or two for the threads.
  LogClient(const LogClient&) = delete;
  LogClient& operator=(const LogClient&) = delete;

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

  /// Why the server is out of reach or takes no entries now; empty if both connections work.
  std::string fault() const;
  /// Entries after the last one that was read have been removed from the log (RunRegistry), so none is read any more.
  bool has_gap() const;
  std::uint64_t bytes_sent() const;      ///< Of acknowledged entries.
  std::uint64_t bytes_received() const;  ///< Of entries that were read.

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain
