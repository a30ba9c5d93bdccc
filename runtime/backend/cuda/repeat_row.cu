#include "runtime/backend/cuda/repeat_row.h"

#include <algorithm>

#include "runtime/backend/cuda/cuda_utils.h"
#include "runtime/backend/cuda/elements.cuh"

namespace ddptrain::cuda {

namespace {

constexpr std::uint32_t kThreads = 256;

template <class T>
__global__ void __launch_bounds__(kThreads)
    repeat_row_kernel(const T* row, std::uint32_t rows, std::uint32_t columns, T* out) {
  const std::uint32_t column = blockIdx.x * kThreads + threadIdx.x;
  if (column >= columns) return;
  const T value = row[column];
  for (std::uint32_t i = blockIdx.y; i < rows; i += gridDim.y)
    out[static_cast<std::size_t>(i) * columns + column] = value;
}

}  // namespace

void repeat_row(const void* row, std::int64_t rows, std::int64_t columns, DType dtype, void* out, cudaStream_t stream) {
  const dim3 grid(ceil_div(columns, kThreads), static_cast<std::uint32_t>(std::min<std::int64_t>(rows, 65535)));
  with_element(dtype, [&](auto element) {
    using T = decltype(element);
    repeat_row_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(row), static_cast<std::uint32_t>(rows),
                                                     static_cast<std::uint32_t>(columns), static_cast<T*>(out));
  });
  DDP_CUDA(cudaGetLastError());
}

}  // namespace ddptrain::cuda
