#include "runtime/ops/cuda/image/conv2d_layout.h"

#include <algorithm>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

struct Rearrangement {
  std::uint32_t count, pixels, channels, padded_channels;
  bool channels_first;

  __device__ std::size_t packed_index(std::uint32_t i) const {
    const std::uint32_t row = i / channels;
    const std::uint32_t channel = i - row * channels;
    if (!channels_first) return static_cast<std::size_t>(row) * padded_channels + channel;
    const std::uint32_t outer = row / pixels;
    const std::uint32_t pixel = row - outer * pixels;
    return (static_cast<std::size_t>(outer) * padded_channels + channel) * pixels + pixel;
  }
};

template <class T>
__global__ void __launch_bounds__(kThreads) pack_kernel(Rearrangement r, const T* plain, T* packed) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < r.count; i += stride) {
    packed[r.packed_index(static_cast<std::uint32_t>(i))] = plain[i];
  }
}

template <class T>
__global__ void __launch_bounds__(kThreads) unpack_kernel(Rearrangement r, const T* packed, T* plain, bool accumulate) {
  const std::size_t stride = static_cast<std::size_t>(gridDim.x) * kThreads;
  for (std::size_t i = static_cast<std::size_t>(blockIdx.x) * kThreads + threadIdx.x; i < r.count; i += stride) {
    const T value = packed[r.packed_index(static_cast<std::uint32_t>(i))];
    plain[i] = accumulate ? from_float<T>(to_float(plain[i]) + to_float(value)) : value;
  }
}

Rearrangement rearrangement(const PackedLayout& l) {
  const std::int64_t count = l.outer * l.pixels * l.channels;
  require(count > 0 && count <= std::int64_t{UINT32_MAX}, "conv2d: a tensor too large to be rearranged");
  return {static_cast<std::uint32_t>(count), static_cast<std::uint32_t>(l.pixels),
          static_cast<std::uint32_t>(l.channels), static_cast<std::uint32_t>(l.padded_channels), l.channels_first};
}

std::uint32_t blocks_for(std::uint32_t count) { return std::min<std::uint32_t>(ceil_div(count, kThreads), 8192); }

}  // namespace

void pack(const PackedLayout& layout, DType dtype, const void* plain, void* packed, cudaStream_t stream) {
  const Rearrangement r = rearrangement(layout);
  with_element(dtype, [&]<class T>(T) {
    launch_kernel(pack_kernel<T>, blocks_for(r.count), kThreads, 0, stream, r, static_cast<const T*>(plain),
                  static_cast<T*>(packed));
  });
}

void unpack(const PackedLayout& layout, DType dtype, const void* packed, void* plain, bool accumulate,
            cudaStream_t stream) {
  const Rearrangement r = rearrangement(layout);
  with_element(dtype, [&]<class T>(T) {
    launch_kernel(unpack_kernel<T>, blocks_for(r.count), kThreads, 0, stream, r, static_cast<const T*>(packed),
                  static_cast<T*>(plain), accumulate);
  });
}

}  // namespace ddptrain::cuda
