#include "runtime/core/hash.h"

#include <spdlog/fmt/fmt.h>

#include <cstring>

namespace ddptrain {

// FNV-1a on words of 8 bytes, with the high half folded down so that every input bit reaches the low bits.
void Hash64::mix(std::uint64_t word) {
  state_ = (state_ ^ word) * 0x00000100000001B3u;
  state_ ^= state_ >> 32;
}

void Hash64::add(const void* data, std::size_t bytes) {
  const char* next = static_cast<const char*>(data);
  std::uint64_t word = 0;
  std::size_t left = bytes;
  for (; left >= sizeof(word); left -= sizeof(word), next += sizeof(word)) {
    std::memcpy(&word, next, sizeof(word));
    mix(word);
  }
  word = 0;
  if (left > 0) std::memcpy(&word, next, left);
  mix(word);
  mix(bytes);
}

std::uint64_t Hash64::value() const {
  std::uint64_t x = state_;  // finaliser of MurmurHash3
  x = (x ^ (x >> 33)) * 0xFF51AFD7ED558CCDu;
  x = (x ^ (x >> 33)) * 0xC4CEB9FE1A85EC53u;
  return x ^ (x >> 33);
}

std::string Hash64::hex() const { return fmt::format("{:016x}", value()); }

}  // namespace ddptrain
