#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>

/// The bytes that groups exchange: compressed differences of weights, and the entries of the log that carry them.

namespace ddptrain {

/// The number format of differences in the log.
enum class OuterCodec : std::uint8_t {
  fp32,
  bf16,
  int8,  ///< 8-bit integers from -127 to 127, and a bf16 scale for each block of kCodecBlock values.
  int4,  ///< The same with 4-bit integers from -7 to 7.
};

const char* name_of(OuterCodec codec);

inline constexpr std::int64_t kCodecBlock = 64;

std::size_t encoded_bytes(OuterCodec codec, std::int64_t count);

/// Writes the encoding of `values` to `out`, encoded_bytes() long, and replaces each value by its rounding error, which
/// the caller adds to the next values (error feedback). Returns false, and changes nothing, if a value is not finite.
bool encode(OuterCodec codec, std::span<float> values, std::uint8_t* out);

/// Whether all values that decode() would write are finite. `bytes` has encoded_bytes().
bool is_finite_encoding(OuterCodec codec, std::span<const std::uint8_t> bytes, std::int64_t count);

/// The values of an encoding. The same bytes give the same bits on every machine.
void decode(OuterCodec codec, std::span<const std::uint8_t> bytes, std::span<float> values);

/// How the weights of a run are divided in the log. All parameters, in the order of the model, are one array of `size`
/// values. Fragments are its consecutive ranges, whose bounds are multiples of kCodecBlock.
struct OuterLayout {
  struct Range {
    std::int64_t begin;
    std::int64_t end;
    std::int64_t count() const { return end - begin; }
  };

  std::uint64_t run = 0;  ///< See OuterEntry.
  std::int64_t size = 0;
  std::int64_t fragments = 1;
  OuterCodec codec = OuterCodec::fp32;

  Range range(std::int64_t fragment) const;
};

/// A group's difference of one fragment: outer weights minus its own weights.
struct OuterEntry {
  std::uint64_t run = 0;  ///< Key of the run's settings. Entries of other runs are skipped.
  std::string group;
  std::uint64_t round =
      0;                   ///< Number of differences of the fragment that the group has sent before. In rounds: `base`.
  std::uint64_t base = 0;  ///< Version of the fragment's outer weights that the group trained from.
  std::uint32_t fragment = 0;
  std::string_view payload;  ///< Encoded with the layout's codec. Not owned.
};

/// Why bytes from the log are not an entry.
struct EntryFault {
  std::string group;  ///< As far as it can be read; printable.
  std::string what;
};

inline constexpr std::size_t kLongestGroupName = 64;

/// Whether `name` can name a group: 1 to kLongestGroupName letters, digits, dots, dashes and underscores.
bool is_group_name(std::string_view name);

/// `entry.payload` is encoded with the codec of the layout, and `entry.run` is ignored: it is the run of the layout.
std::string write_entry(const OuterEntry& entry, const OuterLayout& layout);

/// Reads bytes that anybody may have written. Checks length, format, run, names, ranges, checksum and that all values
/// are finite, and allocates only the name of the group. The payload of the result is a part of `bytes`.
std::variant<OuterEntry, EntryFault> parse_entry(std::string_view bytes, const OuterLayout& layout);

/// The bytes of an entry, by its first bytes. Empty if they are too few to tell.
std::optional<std::uint64_t> length_of_entry(std::string_view start);

}  // namespace ddptrain
