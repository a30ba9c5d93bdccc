#pragma once

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>

#include "runtime/outer/redis.h"

/// How faults of the server are told.

namespace ddptrain {

/// Whether the server refuses because it has no memory left.
bool is_full(const RedisFault& fault);
/// Whether the server refuses because it is still reading its file after a start.
bool is_loading(const RedisFault& fault);

/// What is wrong, for the middle of a sentence.
std::string text_of(const RedisFault& fault);

/// Calls `commands`. UsageError, naming the address and what to do, if the server does not do them.
void ask_log(const LogAddress& address, const std::function<void()>& commands);

/// Opens a connection as in ask_log(). While the server is reading its file, waits, after a line that says so.
/// RedisInterrupted once `is_interrupted` returns true.
void open_log(RedisConnection& connection, const LogAddress& address, const std::function<bool()>& is_interrupted);

/// Tells of an outage of the log in one line when it begins and in one when it ends, however many connections notice
/// it. A log that is full has a line of its own. If it is full again within a minute, that is told only if it lasts for
/// a minute. For any thread.
class LogOutage {
 public:
  /// `rounds`: of groups that wait for each other.
  LogOutage(std::string log, bool rounds) : log_(std::move(log)), rounds_(rounds) {}

  void failed(const RedisConnection& connection, const RedisFault& fault);
  void answered(const RedisConnection& connection);

 private:
  using Clock = std::chrono::steady_clock;

  const std::string log_;
  const bool rounds_;
  std::mutex mutex_;
  std::set<const RedisConnection*> failing_;
  Clock::time_point begin_;
  std::optional<Clock::time_point> full_until_;  ///< Of the outage before.
  bool is_told_away_ = false;
  bool is_told_full_ = false;
};

}  // namespace ddptrain
