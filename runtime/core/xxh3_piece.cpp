#include "runtime/core/xxh3_piece.h"

#include <cstring>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddptrain {

Xxh3Keys xxh3_keys() {
  constexpr std::size_t kStripe = 64, kLastStart = 7, kMergeStart = 11;  // of xxhash's specification
  Xxh3Keys keys;
  const auto take = [](auto& words, std::size_t from) { std::memcpy(words, XXH3_kSecret + from, sizeof(words)); };
  take(keys.stripes, 0);
  take(keys.last, sizeof(XXH3_kSecret) - kStripe - kLastStart);
  take(keys.low, kMergeStart);
  take(keys.high, sizeof(XXH3_kSecret) - kStripe - kMergeStart);
  return keys;
}

}  // namespace ddptrain
