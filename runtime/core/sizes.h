#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ddptrain {

/// Numbers of bytes as people type them.
inline constexpr const char* kSizeExamples = "8, 64K, 1.5M, 4G or 4GB";

/// Bytes in a text such as 8, 64K, 1.5M or 4GB, in any case. K, M, G, T and KiB, MiB, GiB, TiB are powers of 1024 (as
/// in nccl-tests). KB, MB, GB, TB are powers of 1000. `bare_unit`: bytes per unit of a number without a unit. Nothing
/// for any other text, for parts of a byte, and for sizes above 1 TiB.
std::optional<std::uint64_t> size_in(std::string_view text, std::uint64_t bare_unit = 1);

/// A text such as 64 KiB, 1.5 MiB, 4 GB, in the largest unit (of 1024, otherwise of 1000) that needs at most two
/// decimals.
std::string format_size(std::uint64_t bytes);

}  // namespace ddptrain
