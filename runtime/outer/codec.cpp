#include "runtime/outer/codec.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "runtime/core/bf16.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

static_assert(std::endian::native == std::endian::little, "entries are little-endian");

constexpr std::array<const char*, 4> kNames = {"fp32", "bf16", "int8", "int4"};

std::int64_t blocks_of(std::int64_t count) { return (count + kCodecBlock - 1) / kCodecBlock; }

int largest_code(OuterCodec codec) { return codec == OuterCodec::int8 ? 127 : 7; }

bool all_finite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

template <class T>
T read_at(const std::uint8_t* bytes, std::int64_t index) {
  T value;
  std::memcpy(&value, bytes + static_cast<std::size_t>(index) * sizeof(T), sizeof(T));
  return value;
}

/// The scale with which the largest value of a block has the largest code. Its rounding to bf16 may be too small by 1
/// part in 512, and to_code() clamps.
Bf16 scale_of(std::span<const float> block, int largest) {
  float most = 0.0f;
  for (const float value : block) most = std::max(most, std::abs(value));
  const Bf16 largest_scale = to_bf16(0x1p120f * 127.0f / static_cast<float>(largest + 1));  // its codes stay finite
  const Bf16 scale = to_bf16(most / static_cast<float>(largest));
  return to_float(scale) < to_float(largest_scale) ? scale : largest_scale;
}

int to_code(float value, float scale, int largest) {
  if (scale == 0.0f) return 0;
  const float limit = static_cast<float>(largest);
  return static_cast<int>(std::nearbyint(std::clamp(value / scale, -limit, limit)));
}

/// Calls visit(block, begin, count) for each block of `count` values.
template <class Visit>
void for_each_block(std::int64_t count, const Visit& visit) {
  for (std::int64_t block = 0; block < blocks_of(count); ++block) {
    const std::int64_t begin = block * kCodecBlock;
    visit(block, begin, std::min(kCodecBlock, count - begin));
  }
}

void encode_blocks(OuterCodec codec, std::span<float> values, std::uint8_t* out) {
  const auto count = static_cast<std::int64_t>(values.size());
  const int largest = largest_code(codec);
  std::uint8_t* const codes = out + static_cast<std::size_t>(blocks_of(count)) * sizeof(Bf16);
  std::memset(codes, 0, encoded_bytes(codec, count) - static_cast<std::size_t>(codes - out));
  for_each_block(count, [&](std::int64_t block, std::int64_t begin, std::int64_t size) {
    const std::span<float> of_block = values.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    const Bf16 stored = scale_of(of_block, largest);
    const float scale = to_float(stored);
    std::memcpy(out + static_cast<std::size_t>(block) * sizeof(stored), &stored, sizeof(stored));
    for (std::int64_t i = 0; i < size; ++i) {
      float& value = of_block[static_cast<std::size_t>(i)];
      const int code = to_code(value, scale, largest);
      value -= static_cast<float>(code) * scale;
      const std::int64_t at = begin + i;
      if (codec == OuterCodec::int8) {
        codes[at] = static_cast<std::uint8_t>(code);
      } else {
        codes[at / 2] = static_cast<std::uint8_t>(codes[at / 2] | (code & 15) << (at % 2 * 4));
      }
    }
  });
}

void decode_blocks(OuterCodec codec, const std::uint8_t* bytes, std::span<float> values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const std::uint8_t* const codes = bytes + static_cast<std::size_t>(blocks_of(count)) * sizeof(Bf16);
  for_each_block(count, [&](std::int64_t block, std::int64_t begin, std::int64_t size) {
    const float scale = to_float(read_at<Bf16>(bytes, block));
    for (std::int64_t at = begin; at < begin + size; ++at) {
      const int four_bits = codes[codec == OuterCodec::int8 ? at : at / 2] >> (at % 2 * 4) & 15;
      const int code = codec == OuterCodec::int8 ? static_cast<std::int8_t>(codes[at]) : (four_bits ^ 8) - 8;
      values[static_cast<std::size_t>(at)] = static_cast<float>(code) * scale;
    }
  });
}

// --- entries --------------------------------------------------------------------------------------------------------

constexpr std::uint32_t kMagic = 0x4F504444;  // "DDPO"
constexpr std::uint16_t kFormat = 1;

struct EntryHead {
  std::uint32_t magic = kMagic;
  std::uint16_t format = kFormat;
  std::uint8_t codec = 0;
  std::uint8_t name_bytes = 0;
  std::uint64_t bytes = 0;  ///< Of the whole entry.
  std::uint64_t run = 0;
  std::uint64_t round = 0;
  std::uint64_t base = 0;
  std::uint32_t fragment = 0;
  std::uint32_t reserved = 0;
};
static_assert(sizeof(EntryHead) == 48);

using Checksum = std::array<std::uint64_t, 2>;

}  // namespace

const char* name_of(OuterCodec codec) { return kNames.at(static_cast<std::size_t>(codec)); }

std::size_t encoded_bytes(OuterCodec codec, std::int64_t count) {
  const auto values = static_cast<std::size_t>(count);
  const auto scales = static_cast<std::size_t>(blocks_of(count)) * sizeof(Bf16);
  switch (codec) {
    case OuterCodec::fp32:
      return values * sizeof(float);
    case OuterCodec::bf16:
      return values * sizeof(Bf16);
    case OuterCodec::int8:
      return scales + values;
    case OuterCodec::int4:
      return scales + (values + 1) / 2;
  }
  return 0;
}

bool encode(OuterCodec codec, std::span<float> values, std::uint8_t* out) {
  if (!all_finite(values)) return false;
  if (codec == OuterCodec::int8 || codec == OuterCodec::int4) {
    encode_blocks(codec, values, out);
    return true;
  }
  if (codec == OuterCodec::fp32) {
    std::memcpy(out, values.data(), values.size_bytes());
    std::ranges::fill(values, 0.0f);
    return true;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    Bf16 rounded = to_bf16(values[i]);
    if (!std::isfinite(to_float(rounded))) rounded.bits -= 1;  // the largest finite bf16 of this sign
    std::memcpy(out + i * sizeof(rounded), &rounded, sizeof(rounded));
    values[i] -= to_float(rounded);
  }
  return true;
}

bool is_finite_encoding(OuterCodec codec, std::span<const std::uint8_t> bytes, std::int64_t count) {
  const auto finite = [](float value) { return std::isfinite(value); };
  if (codec == OuterCodec::fp32) {
    for (std::int64_t i = 0; i < count; ++i) {
      if (!finite(read_at<float>(bytes.data(), i))) return false;
    }
    return true;
  }
  const bool blocks = codec != OuterCodec::bf16;
  const float most = blocks ? static_cast<float>(codec == OuterCodec::int8 ? 128 : 8) : 1.0f;
  for (std::int64_t i = 0; i < (blocks ? blocks_of(count) : count); ++i) {
    if (!finite(most * to_float(read_at<Bf16>(bytes.data(), i)))) return false;
  }
  return true;
}

void decode(OuterCodec codec, std::span<const std::uint8_t> bytes, std::span<float> values) {
  if (codec == OuterCodec::int8 || codec == OuterCodec::int4) return decode_blocks(codec, bytes.data(), values);
  if (codec == OuterCodec::fp32) {
    std::memcpy(values.data(), bytes.data(), values.size_bytes());
    return;
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = to_float(read_at<Bf16>(bytes.data(), static_cast<std::int64_t>(i)));
  }
}

OuterLayout::Range OuterLayout::range(std::int64_t fragment) const {
  const auto bound = [&](std::int64_t number) {
    return number == fragments ? size : size / fragments * number / kCodecBlock * kCodecBlock;
  };
  return {bound(fragment), bound(fragment + 1)};
}

bool is_group_name(std::string_view name) {
  constexpr std::string_view kLetters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.-_";
  return !name.empty() && name.size() <= kLongestGroupName && name.find_first_not_of(kLetters) == name.npos;
}

std::string write_entry(const OuterEntry& entry, const OuterLayout& layout) {
  EntryHead head;
  head.codec = static_cast<std::uint8_t>(layout.codec);
  head.name_bytes = static_cast<std::uint8_t>(entry.group.size());
  head.bytes = sizeof(head) + entry.group.size() + entry.payload.size() + sizeof(Checksum);
  head.run = layout.run;
  head.round = entry.round;
  head.base = entry.base;
  head.fragment = entry.fragment;
  std::string bytes(reinterpret_cast<const char*>(&head), sizeof(head));
  bytes.reserve(head.bytes);
  bytes += entry.group;
  bytes += entry.payload;
  const Checksum checksum = xxh3_128_value(bytes.data(), bytes.size());
  return bytes.append(reinterpret_cast<const char*>(checksum.data()), sizeof(checksum));
}

std::optional<std::uint64_t> length_of_entry(std::string_view start) {
  constexpr std::size_t kBegin = offsetof(EntryHead, bytes);
  std::uint64_t bytes = 0;
  if (start.size() < kBegin + sizeof(bytes)) return std::nullopt;
  std::memcpy(&bytes, start.data() + kBegin, sizeof(bytes));
  return bytes;
}

std::variant<OuterEntry, EntryFault> parse_entry(std::string_view bytes, const OuterLayout& layout) {
  EntryFault fault;
  const auto refused = [&fault](std::string what) {
    fault.what = std::move(what);
    return fault;
  };
  EntryHead head;
  if (bytes.size() < sizeof(head) + 1 + sizeof(Checksum))
    return refused(fmt::format("{} bytes are no entry", bytes.size()));
  std::memcpy(&head, bytes.data(), sizeof(head));
  if (head.magic != kMagic) return refused("it does not begin as an entry does");
  if (head.format != kFormat) {
    return refused(fmt::format("format {}, and this program reads format {}", head.format, kFormat));
  }
  const std::string_view name = bytes.substr(sizeof(head), head.name_bytes);
  fault.group = printable(name);
  if (!is_group_name(name)) return refused("the name of its group is not valid");
  if (head.bytes != bytes.size()) return refused(fmt::format("{} bytes in place of {}", bytes.size(), head.bytes));
  if (head.reserved != 0) return refused("a reserved field is not 0");
  if (head.run != layout.run) return refused("it is of a run with other settings");
  if (head.codec != static_cast<std::uint8_t>(layout.codec)) {
    return refused(fmt::format("number format {} in place of {}", head.codec, name_of(layout.codec)));
  }
  if (head.fragment >= layout.fragments) {
    return refused(fmt::format("fragment {} of {}", head.fragment, layout.fragments));
  }
  const std::int64_t count = layout.range(head.fragment).count();
  const std::size_t before = sizeof(head) + name.size();
  const std::size_t payload = encoded_bytes(layout.codec, count);
  if (bytes.size() != before + payload + sizeof(Checksum)) {
    return refused(fmt::format("{} bytes, and fragment {} has {}", bytes.size(), head.fragment,
                               before + payload + sizeof(Checksum)));
  }
  Checksum stored;
  std::memcpy(stored.data(), bytes.data() + before + payload, sizeof(stored));
  if (stored != xxh3_128_value(bytes.data(), before + payload)) return refused("its checksum is wrong");
  const std::string_view values = bytes.substr(before, payload);
  const std::span<const std::uint8_t> encoding(reinterpret_cast<const std::uint8_t*>(values.data()), values.size());
  if (!is_finite_encoding(layout.codec, encoding, count)) return refused("a value is NaN or infinite");
  return OuterEntry{head.run, std::string(name), head.round, head.base, head.fragment, values};
}

}  // namespace ddptrain
