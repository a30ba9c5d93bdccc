#include "runtime/ops/cuda/norm/norm.cuh"

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/dropout.cuh"
#include "runtime/ops/cuda/gemm/fp8.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda::norm {
namespace {

/// y = layer_norm(x), or x = sum = residual + dropout(branch) before that.
template <class T>
struct Forward {
  const T* x;  ///< The residual if there is a branch.
  const T* branch;
  const T* weight;
  const T* bias;
  T* sum;
  T* y;  ///< Unless it becomes FP8.
  float2* statistics;
  std::uint32_t rows, width, sequence;
  float epsilon;
  Dropout dropout;
};

/// sum = residual + factor * branch, rounded as it is stored.
template <class T>
__device__ __forceinline__ void add_branch(const Forward<T>& a, std::uint32_t row, std::uint32_t column,
                                           float (&x)[kPack]) {
  float factor[kPack];
#pragma unroll
  for (float& f : factor) f = 1.0f;
  if (a.dropout.rate > 0.0f) {
    eight_factors(a.dropout, row % a.sequence * a.width + column, row / a.sequence, a.width, factor);
  }
  if (column >= a.width) return;
  const std::size_t at = static_cast<std::size_t>(row) * a.width + column;
  float branch[kPack];
  load<kPack>(a.branch + at, branch);
#pragma unroll
  for (int k = 0; k < kPack; ++k) x[k] = to_float(from_float<T>(x[k] + branch[k] * factor[k]));
  store<kPack>(x, a.sum + at);
}

/// kFp8: y is the values of `fp8`.
template <class T, int kPacks, bool kAdd, bool kFp8>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Forward<T> a, const Fp8Matrix fp8) {
  const std::uint32_t row = warp_row();
  if (row >= a.rows) return;
  const std::size_t start = static_cast<std::size_t>(row) * a.width;
  float x[kPacks][kPack] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (pack_start(i) < a.width) load<kPack>(a.x + start + pack_start(i), x[i]);
  }
  float total = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (kAdd) add_branch(a, row, pack_start(i), x[i]);
#pragma unroll
    for (const float value : x[i]) total += value;
  }
  const float mean = warp_sum(total) / a.width;
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (pack_start(i) >= a.width) continue;
#pragma unroll
    for (const float value : x[i]) squares += (value - mean) * (value - mean);
  }
  const float inverse = rsqrtf(warp_sum(squares) / a.width + a.epsilon);
  if (threadIdx.x % 32 == 0) a.statistics[row] = make_float2(mean, inverse);
  const float scale = kFp8 ? fp8.state->scale : 1.0f;
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::uint32_t column = pack_start(i);
    if (column >= a.width) continue;
    float weight[kPack], bias[kPack];
    load<kPack>(a.weight + column, weight);
    load<kPack>(a.bias + column, bias);
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

template <class T, bool kAdd>
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
  const float mean = warp_sum(total) / a.width;
  float squares = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    const float difference = to_float(x[c]) - mean;
    squares += difference * difference;
  }
  const float inverse = rsqrtf(warp_sum(squares) / a.width + a.epsilon);
  if (threadIdx.x % 32 == 0) a.statistics[row] = make_float2(mean, inverse);
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    a.y[start + c] = from_float<T>((to_float(x[c]) - mean) * inverse * to_float(a.weight[c]) + to_float(a.bias[c]));
  }
}

template <class T>
bool has_packs(const Forward<T>& a) {
  return in_packs(a.width, a.x, a.branch, a.weight, a.bias, a.sum, a.y);
}

template <class T, bool kAdd>
void forward(const Forward<T>& a, cudaStream_t stream) {
  const std::uint32_t blocks = ceil_div(a.rows, kWarps);
  if (!has_packs(a)) return launch_kernel(any_width_forward_kernel<T, kAdd>, blocks, kThreads, 0, stream, a);
  with_packs(a.width, [&](auto packs) {
    launch_kernel(forward_kernel<T, packs.value, kAdd, false>, blocks, kThreads, 0, stream, a, Fp8Matrix{});
  });
}

/// The same with y in FP8.
template <bool kAdd>
void forward(Forward<__nv_bfloat16> a, const Fp8Matrix& y, Scratch& scratch, cudaStream_t stream) {
  if (!has_packs(a)) {
    a.y = scratch.reserve_elements<__nv_bfloat16>(static_cast<std::size_t>(a.rows) * a.width, stream);
    forward<__nv_bfloat16, kAdd>(a, stream);
    return quantize(a.y, y, {}, stream);
  }
  const auto in_packs = [&] {
    with_packs(a.width, [&](auto packs) {
      launch_kernel(forward_kernel<__nv_bfloat16, packs.value, kAdd, true>, ceil_div(a.rows, kWarps), kThreads, 0,
                    stream, a, y);
    });
  };
  if (y.first_use) {  // to learn its magnitude
    in_packs();
    renew(y.state, 1, stream);
  }
  in_packs();
  transpose(y, stream);
}

}  // namespace
}  // namespace cuda::norm

namespace norm = cuda::norm;

void CudaNorm::forward(const Tensor& x, const Tensor& branch, const Dropout& dropout, const Tensor& weight,
                       const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                       const Tensor& statistics) {
  if (x.size() == 0) return;
  const std::int64_t rows = statistics.dim(0), sequence = dropout.rate > 0.0f ? x.dim(1) : 1;
  cuda::with_element(dtype(), [&]<class T>(T) {
    const norm::Forward<T> a{x.as<T>(),
                             branch.as<T>(),
                             weight.as<T>(),
                             bias.as<T>(),
                             sum.as<T>(),
                             y.as<T>(),
                             statistics.as<float2>(),
                             static_cast<std::uint32_t>(rows),
                             static_cast<std::uint32_t>(weight.dim(0)),
                             static_cast<std::uint32_t>(sequence),
                             epsilon,
                             dropout};
    if constexpr (sizeof(T) == 2) {
      if (is_fp8(y.dtype)) {
        const auto run = branch ? norm::forward<true> : norm::forward<false>;
        return run(a, cuda::fp8_output(y, stream()), scratch(), stream());
      }
    }
    const auto run = branch ? norm::forward<T, true> : norm::forward<T, false>;
    run(a, stream());
  });
}

void CudaNorm::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                          const Tensor& statistics) {
  check_layer_norm("layer_norm", x, weight, bias, y, statistics, dtype());
  forward(x, {}, {}, weight, bias, epsilon, {}, y, statistics);
}

void CudaNorm::add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout,
                              const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& sum,
                              const Tensor& y, const Tensor& statistics) {
  check_add_layer_norm(residual, branch, dropout, weight, bias, sum, y, statistics, dtype());
  forward(residual, branch, dropout, weight, bias, epsilon, sum, y, statistics);
}

std::unique_ptr<NormOps> NormOps::on_cuda(Device& device) { return std::make_unique<CudaNorm>(device); }

}  // namespace ddptrain
