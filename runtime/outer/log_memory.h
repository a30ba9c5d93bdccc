#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "runtime/outer/redis.h"

/// The memory of the server. Groups leave some of it free, because a full server takes neither a snapshot nor the
/// notes without which no entry can be removed.

namespace ddptrain {

/// Bytes that the server may still take. Nothing if it has no limit or does not tell.
std::optional<std::uint64_t> free_memory(RedisConnection& connection);

/// RedisRefusal, for which is_full() holds, if the server may take fewer bytes. `purpose`: of the bytes.
void require_memory(RedisConnection& connection, std::uint64_t bytes, std::string_view purpose);

}  // namespace ddptrain
