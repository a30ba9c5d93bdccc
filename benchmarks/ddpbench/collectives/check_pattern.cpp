#include "benchmarks/ddpbench/collectives/check_pattern.h"

#include <bit>

#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

/// A number that bf16 represents exactly, as bf16.
std::uint16_t exact_bf16(int value) {
  return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(value)) >> 16);
}

}  // namespace

void fill_pattern(const Tensor& values, int rank) {
  DDP_CHECK(values.dtype == DType::f32 || values.dtype == DType::bf16, "no pattern of {}", name_of(values.dtype));
  const auto count = static_cast<std::uint64_t>(values.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    const int value = pattern(rank, i);
    if (values.dtype == DType::f32) {
      values.as<float>()[i] = static_cast<float>(value);
    } else {
      values.as<std::uint16_t>()[i] = exact_bf16(value);
    }
  }
}

std::uint64_t count_wrong(const Tensor& values, const Expected& expected) {
  DDP_CHECK(values.dtype == DType::f32 || values.dtype == DType::bf16, "no pattern of {}", name_of(values.dtype));
  std::uint64_t wrong = 0;
  const auto count = static_cast<std::uint64_t>(values.size());
  for (std::uint64_t i = 0; i < count; ++i) {
    const int value = expected.value(i);
    const bool right = values.dtype == DType::f32 ? values.as<float>()[i] == static_cast<float>(value)
                                                  : values.as<std::uint16_t>()[i] == exact_bf16(value);
    if (!right) ++wrong;
  }
  return wrong;
}

}  // namespace ddptrain::bench
