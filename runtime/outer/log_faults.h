#pragma once

#include <functional>
#include <string>

#include "runtime/outer/redis.h"

/// How faults of the server are told.

namespace ddptrain {

/// Whether the server refuses because it has no memory left.
bool is_full(const RedisFault& fault);

/// What is wrong, for the middle of a sentence.
std::string text_of(const RedisFault& fault);

/// Calls `commands`. UsageError, naming the address and what to do, if the server does not do them.
void ask_log(const LogAddress& address, const std::function<void()>& commands);

}  // namespace ddptrain
