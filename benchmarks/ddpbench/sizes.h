#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/core/sizes.h"

namespace ddptrain::bench {

/// As size_in(). UsageError, which names `flag`, for any other text and for sizes above 1 TiB.
std::uint64_t parse_size(const std::string& flag, const std::string& text);

/// begin, begin * factor, ... up to end. UsageError if begin is 0 or above end, or factor is below 2.
std::vector<std::uint64_t> size_sweep(std::uint64_t begin, std::uint64_t end, std::uint64_t factor);

/// begin, begin + step, ... up to end. UsageError if begin is 0 or above end, or there are more than 10,000 sizes.
std::vector<std::uint64_t> size_steps(std::uint64_t begin, std::uint64_t end, std::uint64_t step);

/// 1, 2, 5, 10, 20, 50, ... below `last`, then `last`.
std::vector<std::uint64_t> one_two_five(std::uint64_t last);

}  // namespace ddptrain::bench
