#include "benchmarks/ddpbench/sizes.h"

#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain::bench {

std::uint64_t parse_size(const std::string& flag, const std::string& text) {
  if (const auto bytes = size_in(text)) return *bytes;
  usage_error("{} {}: give a whole number of bytes up to 1024G, such as {}", flag, printable(text), kSizeExamples);
}

namespace {

constexpr std::uint64_t kMostSizes = 10'000;

void check_range(std::uint64_t begin, std::uint64_t end) {
  if (begin > 0 && begin <= end) return;
  usage_error("sizes from {} to {} bytes: the first must be at least 1 and not above the last", begin, end);
}

}  // namespace

std::vector<std::uint64_t> size_sweep(std::uint64_t begin, std::uint64_t end, std::uint64_t factor) {
  check_range(begin, end);
  if (factor < 2) usage_error("--factor {}: give 2 or more", factor);
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = begin;; size *= factor) {
    sizes.push_back(size);
    if (size > end / factor) return sizes;
  }
}

std::vector<std::uint64_t> size_steps(std::uint64_t begin, std::uint64_t end, std::uint64_t step) {
  check_range(begin, end);
  if (step == 0 || (end - begin) / step >= kMostSizes) {
    usage_error("--stepbytes {} from {} to {}: that are more than {} sizes. Give a larger step.", step, begin, end,
                kMostSizes);
  }
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t size = begin; size <= end; size += step) sizes.push_back(size);
  return sizes;
}

std::vector<std::uint64_t> one_two_five(std::uint64_t last) {
  std::vector<std::uint64_t> values;
  for (std::uint64_t decade = 1; decade < last; decade *= 10) {
    for (const std::uint64_t digit : {1, 2, 5}) {
      if (digit * decade < last) values.push_back(digit * decade);
    }
    if (decade > last / 10) break;
  }
  values.push_back(last);
  return values;
}

}  // namespace ddptrain::bench
