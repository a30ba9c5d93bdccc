#include "runtime/outer/log_memory.h"

#include <charconv>
#include <string>

#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// Of a line "name:number" in the answer to INFO; 0 if there is none.
std::uint64_t number_of(std::string_view name, std::string_view answer) {
  const std::string begin = fmt::format("\n{}:", name);
  const std::size_t at = answer.find(begin);
  std::uint64_t number = 0;
  if (at == answer.npos) return number;
  const std::string_view digits = answer.substr(at + begin.size());
  std::from_chars(digits.data(), digits.data() + digits.size(), number);
  return number;
}

}  // namespace

std::optional<std::uint64_t> free_memory(RedisConnection& connection) {
  RedisReply answer;
  try {
    answer = connection.command({"INFO", "memory"});
  } catch (const RedisRefusal&) {  // the server was started by an earlier version, or by somebody else
    return std::nullopt;
  }
  const std::uint64_t most = number_of("maxmemory", answer.text);
  const std::uint64_t used = number_of("used_memory", answer.text);
  if (most == 0) return std::nullopt;
  return used < most ? most - used : 0;
}

void require_memory(RedisConnection& connection, std::uint64_t bytes, std::string_view purpose) {
  const std::optional<std::uint64_t> free = free_memory(connection);
  if (!free || *free >= bytes) return;
  throw RedisRefusal(fmt::format("OOM {} are free, {} are needed for {}", size_text(*free), size_text(bytes), purpose));
}

}  // namespace ddptrain
