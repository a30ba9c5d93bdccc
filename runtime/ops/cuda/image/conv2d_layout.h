#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/tensor.h"

namespace ddptrain::cuda {

/// How a tensor [outer, pixels, channels] is laid out for cuDNN: with padded channels, which come before the pixels
/// where `channels_first`.
struct PackedLayout {
  std::int64_t outer = 0;
  std::int64_t pixels = 0;
  std::int64_t channels = 0;
  std::int64_t padded_channels = 0;
  bool channels_first = false;
};

/// packed = plain, rearranged. Padding is not written. Less than 2^32 elements.
void pack(const PackedLayout& layout, DType dtype, const void* plain, void* packed, cudaStream_t stream);
/// plain (+)= packed, rearranged back.
void unpack(const PackedLayout& layout, DType dtype, const void* packed, void* plain, bool accumulate,
            cudaStream_t stream);

}  // namespace ddptrain::cuda
