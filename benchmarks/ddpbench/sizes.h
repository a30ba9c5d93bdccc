#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace ddptrain::bench {

/// Bytes in a text such as 8, 64K, 1.5M or 4GB. K, M, G and KiB, MiB, GiB are powers of 1024 (as in nccl-tests); KB,
/// MB, GB are powers of 1000. UsageError, which names `flag`, for any other text and for sizes above 1 TiB.
std::uint64_t parse_size(const std::string& flag, const std::string& text);

/// A text such as 64 KiB, 1.5 MiB, 4 GB, in the largest unit (of 1024, otherwise of 1000) that needs at most two
/// decimals.
std::string format_size(std::uint64_t bytes);

/// begin, begin * factor, ... up to end. UsageError if begin is 0 or above end, or factor is below 2.
std::vector<std::uint64_t> size_sweep(std::uint64_t begin, std::uint64_t end, std::uint64_t factor);

/// 1, 2, 5, 10, 20, 50, ... below `last`, then `last`.
std::vector<std::uint64_t> one_two_five(std::uint64_t last);

}  // namespace ddptrain::bench
