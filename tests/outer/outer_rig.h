#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/core/random.h"
#include "runtime/outer/codec.h"

namespace ddptrain {

/// Values with a sign, of very different sizes.
inline std::vector<float> some_values(std::int64_t count, std::uint32_t seed) {
  std::vector<float> values;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::uint32_t bits = static_cast<std::uint32_t>(i) * 2654435761u + seed * 40503u;
    const float unit = static_cast<float>(bits >> 8) / 16777216.0f - 0.5f;
    values.push_back(i % 17 == 3 ? 100.0f * unit : 0.01f * unit);
  }
  return values;
}

/// The bytes of an entry whose difference is `values`.
inline std::string entry_of(const OuterLayout& layout, const std::string& group, std::uint64_t round,
                            std::uint64_t base, std::vector<float> values, std::uint32_t fragment = 0) {
  std::string payload(encoded_bytes(layout.codec, static_cast<std::int64_t>(values.size())), '\0');
  encode(layout.codec, values, reinterpret_cast<std::uint8_t*>(payload.data()));
  return write_entry({0, group, round, base, fragment, payload}, layout);
}

inline std::string fault_in(const std::string& bytes, const OuterLayout& layout) {
  const auto parsed = parse_entry(bytes, layout);
  const auto* fault = std::get_if<EntryFault>(&parsed);
  return fault == nullptr ? "" : fault->what;
}

}  // namespace ddptrain
