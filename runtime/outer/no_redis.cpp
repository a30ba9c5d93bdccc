#include "runtime/outer/redis.h"

namespace ddptrain {

struct RedisConnection::Impl {};

void require_redis(const LogAddress& /*address*/) {
  usage_error(
      "this program was built without hiredis: install libhiredis-dev (Debian, Ubuntu; launch/setup does), configure "
      "with cmake again, and build");
}

// No connection is ever made.
RedisConnection::RedisConnection(const LogAddress& address, std::function<bool()> /*is_interrupted*/) {
  require_redis(address);
}
RedisConnection::~RedisConnection() = default;
bool RedisConnection::is_open() const { return false; }
void RedisConnection::close() {}
void RedisConnection::open() {}
RedisReply RedisConnection::command(const std::vector<std::string_view>& /*words*/, std::size_t /*most*/) { return {}; }

}  // namespace ddptrain
