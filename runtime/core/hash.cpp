#include "runtime/core/hash.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#include "runtime/core/error.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace ddptrain {

struct Hash128::State {
  XXH3_state_t xxh;
};

Hash128::Hash128() : state_(std::make_unique<State>()) { XXH3_128bits_reset(&state_->xxh); }
Hash128::~Hash128() = default;

void Hash128::add(const void* data, std::size_t bytes) {
  begin(bytes);
  go_on(data, bytes);
}

void Hash128::begin(std::size_t bytes) {
  const auto length = static_cast<std::uint64_t>(bytes);
  XXH3_128bits_update(&state_->xxh, &length, sizeof(length));
}

void Hash128::go_on(const void* piece, std::size_t bytes) { XXH3_128bits_update(&state_->xxh, piece, bytes); }

std::string Hash128::state() const {
  std::string bytes(sizeof(State), '\0');
  std::memcpy(bytes.data(), state_.get(), bytes.size());
  return bytes;
}

void Hash128::go_on_from(const std::string& state) {
  DDP_CHECK(state.size() == sizeof(State), "a hash of {} bytes", state.size());
  const auto* const secret = state_->xxh.extSecret;  // lies elsewhere in every process
  std::memcpy(static_cast<void*>(state_.get()), state.data(), state.size());
  state_->xxh.extSecret = secret;
}

namespace {

std::string hex_of(const std::array<std::uint64_t, 2>& value) {
  return fmt::format("{:016x}{:016x}", value[0], value[1]);
}

}  // namespace

std::array<std::uint64_t, 2> Hash128::value() const {
  const XXH128_hash_t value = XXH3_128bits_digest(&state_->xxh);
  return {value.high64, value.low64};
}

std::string Hash128::hex() const { return hex_of(value()); }

std::array<std::uint64_t, 2> xxh3_128_value(const void* data, std::size_t bytes) {
  const XXH128_hash_t value = XXH3_128bits(data, bytes);
  return {value.high64, value.low64};
}

std::string xxh3_128(const void* data, std::size_t bytes) { return hex_of(xxh3_128_value(data, bytes)); }

std::string xxh3_128_of_file(const std::filesystem::path& path) {
  std::ifstream file(path, std::ios::binary);
  std::vector<char> piece(std::size_t{1} << 20);
  XXH3_state_t state;
  XXH3_128bits_reset(&state);
  while (file) {
    file.read(piece.data(), static_cast<std::streamsize>(piece.size()));
    XXH3_128bits_update(&state, piece.data(), static_cast<std::size_t>(file.gcount()));
  }
  if (!file.eof()) return "";
  const XXH128_hash_t value = XXH3_128bits_digest(&state);
  return hex_of({value.high64, value.low64});
}

void SharedHash::add(const void* data, std::size_t bytes, const std::function<void(const void*, std::size_t)>& see) {
  for (std::size_t at = 0; at < bytes; at += kPieceBytes, ++next_) {
    if (next_ % readers_ != reader_) continue;
    const char* piece = static_cast<const char*>(data) + at;
    const std::size_t size = std::min(kPieceBytes, bytes - at);
    if (see) see(piece, size);
    Hash128 hash;
    hash.add(next_);
    hash.add(piece, size);
    value_ = combined(value_, hash.value());
  }
}

}  // namespace ddptrain
