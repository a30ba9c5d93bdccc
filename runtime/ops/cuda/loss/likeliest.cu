#include "runtime/device/cuda/elements.cuh"
#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/loss/loss.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda {
namespace {

constexpr std::uint32_t kThreads = 1024;
constexpr std::uint32_t kWarps = kThreads / 32;
static_assert(kWarps == 32);

/// Orders logits as their values do, and equal ones so that the first is the largest.
__device__ __forceinline__ std::uint64_t order_of(float logit, std::uint32_t token) {
  const std::uint32_t bits = __float_as_uint(logit + 0.0f);  // of the two zeros, the positive
  const std::uint32_t order = bits ^ (bits >> 31 != 0 ? 0xFFFFFFFFu : 0x80000000u);
  return std::uint64_t{order} << 32 | (0xFFFFFFFFu - token);
}

__device__ __forceinline__ std::uint64_t warp_max(std::uint64_t value) {
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) value = max(value, __shfl_xor_sync(kAllLanes, value, offset));
  return value;
}

/// One block. V neighbouring logits are read at once.
template <class T, int V>
__global__ void __launch_bounds__(kThreads)
    likeliest_kernel(const T* logits, std::uint32_t count, LikeliestToken* likeliest) {
  __shared__ std::uint64_t best_of_warps[kWarps];
  follow_predecessor();
  std::uint64_t best = 0;
  bool finite = true;
#pragma unroll 4
  for (std::uint32_t first = threadIdx.x * V; first < count; first += kThreads * V) {
    float value[V];
    load<V>(logits + first, value);
#pragma unroll
    for (int i = 0; i < V; ++i) {
      best = max(best, order_of(value[i], first + i));
      finite = finite && isfinite(value[i]);
    }
  }
  best = warp_max(best);
  if (threadIdx.x % 32 == 0) best_of_warps[threadIdx.x / 32] = best;
  const int all_finite = __syncthreads_and(finite ? 1 : 0);
  if (threadIdx.x >= 32) return;
  best = warp_max(best_of_warps[threadIdx.x]);
  if (threadIdx.x > 0) return;
  likeliest->token = 0xFFFFFFFFu - static_cast<std::uint32_t>(best);
  likeliest->all_finite = all_finite != 0 ? 1 : 0;
}

}  // namespace
}  // namespace cuda

void CudaLoss::likeliest_token(const Tensor& logits, LikeliestToken* likeliest) {
  expect_tensor("likeliest_token", "logits", logits, dtype(), {logits.size()});
  const std::int64_t count = logits.size();
  cuda::require(count > 0, "likeliest_token: no logits");
  cuda::with_element(dtype(), [&]<class T>(T) {
    constexpr int kWide = 16 / sizeof(T);
    const bool wide = count % kWide == 0 && cuda::is_aligned(logits.data, 16);
    const auto kernel = wide ? cuda::likeliest_kernel<T, kWide> : cuda::likeliest_kernel<T, 1>;
    cuda::launch_early(kernel, 1, cuda::kThreads, 0, stream(), logits.as<T>(), count, likeliest);
  });
}

}  // namespace ddptrain
