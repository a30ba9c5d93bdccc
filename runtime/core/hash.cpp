#include "runtime/core/hash.h"

#include <spdlog/fmt/fmt.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddptrain {

struct Hash128::State {
  XXH3_state_t xxh;
};

Hash128::Hash128() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Hash128::~Hash128() = default;

void Hash128::add(const void* data, std::size_t bytes) {
  const auto length = static_cast<std::uint64_t>(bytes);
  XXH3_128bits_update(&state_->xxh, &length, sizeof(length));
  XXH3_128bits_update(&state_->xxh, data, bytes);
}

std::string Hash128::hex() const {
  const XXH128_hash_t value = XXH3_128bits_digest(&state_->xxh);
  return fmt::format("{:016x}{:016x}", value.high64, value.low64);
}

}  // namespace ddptrain
