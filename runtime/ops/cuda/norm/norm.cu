#include "runtime/ops/cuda/norm/norm.cuh"

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/cuda/gemm/fp8.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda::norm {
namespace {

constexpr int kMaxWidth = 8192;

/// y = norm(x), or x = sum = residual + dropout(branch) before that.
template <class T>
struct Forward {
  const T* x;  ///< The residual if there is a branch.
  const T* branch;
  const T* weight;
  const T* bias;  ///< Null for an RMS norm.
  T* sum;
  T* y;  ///< Unless it becomes FP8.
  float* statistics;
  std::uint32_t rows, width, sequence;
  float epsilon;
  Dropout dropout;
  Others<T> others;  ///< Of the branch.
};

/// A pack as it is in memory: bf16 takes half of a register.
template <class T>
struct StoredPack {
  uint4 words[kPack * sizeof(T) / sizeof(uint4)];
};
template <class T>
__device__ __forceinline__ StoredPack<T> stored_pack(const T* from) {
  return *reinterpret_cast<const StoredPack<T>*>(from);
}

/// sum = residual + factor * branch, rounded as it is stored.
template <class T>
__device__ __forceinline__ void add_branch(const Forward<T>& a, std::uint32_t row, std::uint32_t column,
                                           const StoredPack<T>& stored, float (&x)[kPack]) {
  float factor[kPack];
#pragma unroll
  for (float& f : factor) f = 1.0f;
  if (a.dropout.rate > 0.0f) {
    eight_factors(a.dropout, row % a.sequence * a.width + column, row / a.sequence, a.width, factor);
  }
  if (column >= a.width) return;
  const std::size_t at = static_cast<std::size_t>(row) * a.width + column;
  float branch[kPack];
  load<kPack>(reinterpret_cast<const T*>(&stored), branch);
  a.others.add(at, branch);
#pragma unroll
  for (int k = 0; k < kPack; ++k) x[k] = to_float(from_float<T>(x[k] + branch[k] * factor[k]));
  store<kPack>(x, a.sum + at);
}

/// Sum over the warps of a group. `shared` is of the group.
template <int kGroup>
__device__ __forceinline__ float group_sum(float value, float (&shared)[kGroup]) {
  value = warp_sum(value);
  if constexpr (kGroup > 1) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % kGroup] = value;
    meet_group<kGroup>();
    value = shared[0];
#pragma unroll
    for (int i = 1; i < kGroup; ++i) value += shared[i];
  }
  return value;
}

/// Blocks of forward_kernel that a multiprocessor holds at least; 0: any number. Long rows in bf16 take all the
/// registers that two blocks leave them, or a few more if they may.
template <class T, int kPacks>
constexpr int kResidentBlocks = sizeof(T) == 2 && kPacks >= 7 ? 2 : 0;

/// kGroup warps take a row. kFp8: y is the values of `fp8`.
template <class T, Kind kKind, int kPacks, int kGroup, bool kAdd, bool kFp8>
__global__ void __launch_bounds__(kThreads, kResidentBlocks<T, kPacks>)
    forward_kernel(const Forward<T> a, const Fp8Matrix fp8) {
  __shared__ float exchanged[2][kWarps / kGroup][kGroup];
  const std::uint32_t group = threadIdx.x / (32 * kGroup);
  const std::uint32_t row = blockIdx.x * (kWarps / kGroup) + group;
  if (row >= a.rows) return;
  const Place<kGroup> place;
  const std::size_t start = static_cast<std::size_t>(row) * a.width;
  float x[kPacks][kPack] = {};
  StoredPack<T> branch[kPacks];
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {  // all reads are under way before the first store: they would wait for it
    if (place.column(i) >= a.width) continue;
    load<kPack>(a.x + start + place.column(i), x[i]);
    if (kAdd) branch[i] = stored_pack(a.branch + start + place.column(i));
  }
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (kAdd) add_branch(a, row, place.column(i), branch[i], x[i]);
    if constexpr (kKind == Kind::layer) {
#pragma unroll
      for (const float value : x[i]) total += value;
    }
  }
  const float mean = kKind == Kind::layer ? group_sum<kGroup>(total, exchanged[0][group]) / a.width : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (place.column(i) >= a.width) continue;
#pragma unroll
    for (const float value : x[i]) squares += (value - mean) * (value - mean);
  }
  const float inverse = rsqrtf(group_sum<kGroup>(squares, exchanged[1][group]) / a.width + a.epsilon);
  if (threadIdx.x % (32 * kGroup) == 0) put_statistics<kKind>(mean, inverse, a.statistics, row);
  const float scale = kFp8 ? fp8.state->scale : 1.0f;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::uint32_t column = place.column(i);
    if (column >= a.width) continue;
    float weight[kPack], bias[kPack] = {};
    load<kPack>(a.weight + column, weight);
    if constexpr (kKind == Kind::layer) load<kPack>(a.bias + column, bias);
#pragma unroll
    for (int k = 0; k < kPack; ++k) x[i][k] = (x[i][k] - mean) * inverse * weight[k] + bias[k];
    if constexpr (kFp8) {
      largest = largest_magnitude(x[i], largest);
      *reinterpret_cast<uint2*>(fp8.values + start + column) = pack_fp8<DType::e4m3>(x[i], scale);
    } else {
      store<kPack>(x[i], a.y + start + column);
    }
  }
  if (!kFp8) return;
  largest = warp_max(largest);
  if (threadIdx.x % 32 == 0) note_largest(largest, fp8.state);
}

constexpr int kMaxThreads = kMaxWidth / kPack;

/// RMS norms of a few rows, which leave a GPU idle: a block takes a row, and a thread a pack of it.
template <class T, bool kAdd>
__global__ void __launch_bounds__(kMaxThreads) few_rows_forward_kernel(const Forward<T> a) {
  __shared__ float squares_of_warps[kMaxThreads / 32];
  const std::uint32_t row = blockIdx.x, column = threadIdx.x * kPack;
  const std::uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, warps = blockDim.x / 32;
  const std::size_t at = static_cast<std::size_t>(row) * a.width + column;
  if (threadIdx.x == 0) prefetch_to_l2(a.weight, a.width * static_cast<std::uint32_t>(sizeof(T)));
  follow_predecessor();
  float x[kPack] = {}, weight[kPack] = {};
  StoredPack<T> branch;
  if (column < a.width) {
    load<kPack>(a.x + at, x);
    load<kPack>(a.weight + column, weight);
    if (kAdd) branch = stored_pack(a.branch + at);
  }
  if (kAdd) add_branch(a, row, column, branch, x);
  float squares = 0.0f;
#pragma unroll
  for (const float value : x) squares += value * value;
  squares = warp_sum(squares);
  if (lane == 0) squares_of_warps[warp] = squares;
  __syncthreads();
  const float total = warp_sum(lane < warps ? squares_of_warps[lane] : 0.0f);
  const float inverse = rsqrtf(total / a.width + a.epsilon);
  if (threadIdx.x == 0) put_statistics<Kind::rms>(0.0f, inverse, a.statistics, row);
  if (column >= a.width) return;
#pragma unroll
  for (int k = 0; k < kPack; ++k) x[k] *= inverse * weight[k];
  store<kPack>(x, a.y + at);
}

template <class T, Kind kKind, bool kAdd>
__global__ void __launch_bounds__(kThreads) any_width_forward_kernel(const Forward<T> a) {
  const std::uint32_t row = warp_row();
  if (row >= a.rows) return;
  const std::size_t start = static_cast<std::size_t>(row) * a.width;
  const T* x = kAdd ? a.sum + start : a.x + start;
  float total = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    if (kAdd) {
      const bool kept = a.dropout.keeps(row % a.sequence * a.width + c, row / a.sequence);
      const float factor = kept ? a.dropout.scale() : 0.0f;
      a.sum[start + c] = from_float<T>(to_float(a.x[start + c]) + to_float(a.branch[start + c]) * factor);
    }
    total += to_float(x[c]);
  }
  const float mean = kKind == Kind::layer ? warp_sum(total) / a.width : 0.0f;
  float squares = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    const float difference = to_float(x[c]) - mean;
    squares += difference * difference;
  }
  const float inverse = rsqrtf(warp_sum(squares) / a.width + a.epsilon);
  if (threadIdx.x % 32 == 0) put_statistics<kKind>(mean, inverse, a.statistics, row);
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    const float bias = kKind == Kind::layer ? to_float(a.bias[c]) : 0.0f;
    a.y[start + c] = from_float<T>((to_float(x[c]) - mean) * inverse * to_float(a.weight[c]) + bias);
  }
}

template <class T>
bool has_packs(const Forward<T>& a) {
  return in_packs(a.width, kMaxWidth, a.x, a.branch, a.weight, a.bias, a.sum, a.y);
}

/// Whether the kernel for these rows adds the other terms of the branch.
template <Kind kKind, class T>
bool adds_terms(const Forward<T>& a) {
  return has_packs(a) && (kKind == Kind::layer || a.rows > kFewRows);
}

/// work(std::integral_constant<int, packs per lane>{}, std::integral_constant<int, warps per row>{})
template <class Work>
void with_packs(std::int64_t width, Work&& work) {
  constexpr std::integral_constant<int, 1> kOne;
  if (width > 4096) return work(std::integral_constant<int, 8>{}, std::integral_constant<int, 4>{});
  if (width > 2048) return work(std::integral_constant<int, 8>{}, std::integral_constant<int, 2>{});
  switch (ceil_div(width, 32 * kPack)) {
    case 1:
      return work(std::integral_constant<int, 1>{}, kOne);
    case 2:
      return work(std::integral_constant<int, 2>{}, kOne);
    case 3:
      return work(std::integral_constant<int, 3>{}, kOne);
    case 4:
      return work(std::integral_constant<int, 4>{}, kOne);
    case 5:
      return work(std::integral_constant<int, 5>{}, kOne);
    case 6:
    case 7:
      return work(std::integral_constant<int, 7>{}, kOne);
    default:
      return work(std::integral_constant<int, 8>{}, kOne);
  }
}

template <class T, Kind kKind, bool kAdd, bool kFp8>
void forward_in_packs(const Forward<T>& a, const Fp8Matrix& y, cudaStream_t stream) {
  with_packs(a.width, [&](auto packs, auto group) {
    const auto kernel = forward_kernel<T, kKind, packs.value, group.value, kAdd, kFp8>;
    launch_kernel(kernel, ceil_div(a.rows, kWarps / group.value), kThreads, 0, stream, a, y);
  });
}

template <class T, Kind kKind, bool kAdd>
void forward(const Forward<T>& a, cudaStream_t stream) {
  if constexpr (kKind == Kind::rms) {
    if (a.rows <= kFewRows && has_packs(a)) {
      const std::uint32_t threads = 32 * ceil_div(a.width, 32 * kPack);
      return launch_early(few_rows_forward_kernel<T, kAdd>, a.rows, threads, 0, stream, a);
    }
  }
  if (has_packs(a)) return forward_in_packs<T, kKind, kAdd, false>(a, Fp8Matrix{}, stream);
  launch_kernel(any_width_forward_kernel<T, kKind, kAdd>, ceil_div(a.rows, kWarps), kThreads, 0, stream, a);
}

/// The same with y in FP8.
template <Kind kKind, bool kAdd>
void forward(Forward<__nv_bfloat16> a, const Fp8Matrix& y, Scratch& scratch, cudaStream_t stream) {
  if (!has_packs(a)) {
    a.y = scratch.reserve_elements<__nv_bfloat16>(static_cast<std::size_t>(a.rows) * a.width, stream);
    forward<__nv_bfloat16, kKind, kAdd>(a, stream);
    return quantize(a.y, y, {}, stream);
  }
  const auto run = forward_in_packs<__nv_bfloat16, kKind, kAdd, true>;
  if (y.first_use) {  // to learn its magnitude
    run(a, y, stream);
    renew(y.state, 1, stream);
  }
  run(a, y, stream);
  transpose(y, stream);
}

}  // namespace
}  // namespace cuda::norm

namespace norm = cuda::norm;

template <norm::Kind kKind>
void CudaNorms::forward(const Tensor& x, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                        const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                        const Tensor& statistics) {
  if (x.size() == 0) return;
  const std::int64_t rows = statistics.dim(0), sequence = dropout.rate > 0.0f ? x.dim(1) : 1;
  cuda::with_element(dtype(), [&]<class T>(T) {
    norm::Forward<T> a{x.as<T>(),
                       branch.first().as<T>(),
                       weight.as<T>(),
                       bias.as<T>(),
                       sum.as<T>(),
                       y.as<T>(),
                       statistics.as<float>(),
                       static_cast<std::uint32_t>(rows),
                       static_cast<std::uint32_t>(weight.dim(0)),
                       static_cast<std::uint32_t>(sequence),
                       epsilon,
                       dropout,
                       {}};
    a.others = others<T>(branch, !is_fp8(y.dtype) && norm::adds_terms<kKind>(a));
    const bool adds = static_cast<bool>(branch.first());
    if constexpr (sizeof(T) == 2) {
      if (is_fp8(y.dtype)) {
        const auto run = adds ? norm::forward<kKind, true> : norm::forward<kKind, false>;
        return run(a, cuda::fp8_output(y, stream()), scratch(), stream());
      }
    }
    const auto run = adds ? norm::forward<T, kKind, true> : norm::forward<T, kKind, false>;
    run(a, stream());
  });
}

void CudaNorm::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                          const Tensor& statistics) {
  check_layer_norm("layer_norm", x, weight, bias, y, statistics, dtype());
  forward<norm::Kind::layer>(x, Tensor{}, {}, weight, bias, epsilon, {}, y, statistics);
}

void CudaNorm::add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                              const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                              const Tensor& statistics) {
  check_add_layer_norm(residual, branch, dropout, weight, bias, sum, y, statistics, dtype());
  forward<norm::Kind::layer>(residual, branch, dropout, weight, bias, epsilon, sum, y, statistics);
}

void CudaRmsNorm::rms_norm(const Tensor& x, const Tensor& weight, float epsilon, const Tensor& y,
                           const Tensor& statistics) {
  check_rms_norm("rms_norm", x, weight, y, statistics, dtype());
  forward<norm::Kind::rms>(x, Tensor{}, {}, weight, {}, epsilon, {}, y, statistics);
}

void CudaRmsNorm::add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout,
                               const Tensor& weight, float epsilon, const Tensor& sum, const Tensor& y,
                               const Tensor& statistics) {
  check_add_rms_norm(residual, branch, dropout, weight, sum, y, statistics, dtype());
  forward<norm::Kind::rms>(residual, branch, dropout, weight, {}, epsilon, sum, y, statistics);
}

std::unique_ptr<NormOps> NormOps::on_cuda(Device& device) { return std::make_unique<CudaNorm>(device); }
std::unique_ptr<RmsNormOps> RmsNormOps::on_cuda(Device& device) { return std::make_unique<CudaRmsNorm>(device); }

}  // namespace ddptrain
