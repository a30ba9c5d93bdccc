#include <algorithm>
#include <type_traits>

#include "runtime/backend/cuda/column_sums.cuh"
#include "runtime/backend/cuda/cuda_backend.h"
#include "runtime/backend/cuda/dropout.cuh"
#include "runtime/backend/cuda/reduce.cuh"
#include "runtime/backend/expect_tensor.h"

// A warp takes one row. Where rows are made of packs of eight elements and fit the registers of a warp, it reads them
// once; kernels named any_width do without and read them again.

namespace ddptrain {

namespace cuda {
namespace {

constexpr int kWarps = 8;  // of a block
constexpr int kThreads = 32 * kWarps;
constexpr int kPack = 8;
constexpr int kMaxPacks = 8;  // of a lane
constexpr int kMaxWidth = 32 * kPack * kMaxPacks;

/// y = layer_norm(x), or x = sum = residual + dropout(branch) before that.
template <class T>
struct Forward {
  const T* x;  ///< The residual where there is a branch.
  const T* branch;
  const T* weight;
  const T* bias;
  T* sum;
  T* y;
  float2* statistics;
  std::uint32_t rows, width, sequence;
  float epsilon;
  Dropout dropout;
};

template <class T>
struct Backward {
  const T* x;
  const T* weight;
  const float2* statistics;
  const T* dy;
  const T* dresidual;
  T* dx;
  float* partials;  ///< [2, blocks, width]: of dweight, of dbias.
  std::uint32_t rows, width;
};

/// Element that pack i of this lane starts with.
__device__ __forceinline__ std::uint32_t pack_start(int i) { return kPack * (32 * i + threadIdx.x % 32); }
__device__ __forceinline__ std::uint32_t warp_row() { return blockIdx.x * kWarps + threadIdx.x / 32; }

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

template <class T, int kPacks, bool kAdd>
__global__ void __launch_bounds__(kThreads) forward_kernel(const Forward<T> a) {
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
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    const std::uint32_t column = pack_start(i);
    if (column >= a.width) continue;
    float weight[kPack], bias[kPack];
    load<kPack>(a.weight + column, weight);
    load<kPack>(a.bias + column, bias);
#pragma unroll
    for (int k = 0; k < kPack; ++k) x[i][k] = (x[i][k] - mean) * inverse * weight[k] + bias[k];
    store<kPack>(x[i], a.y + start + column);
  }
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

/// Adds up what the warps of a block hold, in the order of the warps, and writes it to the block's row of `partials`.
template <int kPacks>
__device__ __forceinline__ void store_partials(const float (&sum)[kPacks][kPack], float* shared, std::uint32_t width,
                                               float* partials) {
  for (int warp = 0; warp < kWarps; ++warp) {
    __syncthreads();
    if (static_cast<int>(threadIdx.x / 32) != warp) continue;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        float& total = shared[pack_start(i) + k];
        total = warp == 0 ? sum[i][k] : total + sum[i][k];
      }
    }
  }
  __syncthreads();
  for (std::uint32_t c = threadIdx.x; c < width; c += kThreads) {
    partials[static_cast<std::size_t>(blockIdx.x) * width + c] = shared[c];
  }
}

template <class T, int kPacks>
__global__ void __launch_bounds__(kThreads) backward_kernel(const Backward<T> a) {
  __shared__ float shared[32 * kPack * kPacks];
  float dweight[kPacks][kPack] = {};
  float dbias[kPacks][kPack] = {};
  for (std::uint32_t row = warp_row(); row < a.rows; row += gridDim.x * kWarps) {
    const std::size_t start = static_cast<std::size_t>(row) * a.width;
    const float2 statistics = a.statistics[row];
    Pack<T, kPack> x[kPacks], dy[kPacks];
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (pack_start(i) >= a.width) continue;
      x[i] = *reinterpret_cast<const Pack<T, kPack>*>(a.x + start + pack_start(i));
      dy[i] = *reinterpret_cast<const Pack<T, kPack>*>(a.dy + start + pack_start(i));
    }
    float sum = 0.0f, product = 0.0f;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (pack_start(i) >= a.width) continue;
      float weight[kPack];
      load<kPack>(a.weight + pack_start(i), weight);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normal = (to_float(x[i].value[k]) - statistics.x) * statistics.y;
        const float gradient = to_float(dy[i].value[k]);
        dweight[i][k] += gradient * normal;
        dbias[i][k] += gradient;
        sum += gradient * weight[k];
        product += gradient * weight[k] * normal;
      }
    }
    sum = warp_sum(sum) / a.width;
    product = warp_sum(product) / a.width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (pack_start(i) >= a.width) continue;
      float weight[kPack], dx[kPack] = {};
      load<kPack>(a.weight + pack_start(i), weight);
      if (a.dresidual != nullptr) load<kPack>(a.dresidual + start + pack_start(i), dx);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normal = (to_float(x[i].value[k]) - statistics.x) * statistics.y;
        dx[k] += (to_float(dy[i].value[k]) * weight[k] - sum - normal * product) * statistics.y;
      }
      store<kPack>(dx, a.dx + start + pack_start(i));
    }
  }
  store_partials(dweight, shared, a.width, a.partials);
  store_partials(dbias, shared, a.width, a.partials + static_cast<std::size_t>(gridDim.x) * a.width);
}

template <class T>
__global__ void __launch_bounds__(kThreads) any_width_backward_kernel(const Backward<T> a) {
  const std::uint32_t row = warp_row();
  if (row >= a.rows) return;
  const std::size_t start = static_cast<std::size_t>(row) * a.width;
  const float2 statistics = a.statistics[row];
  const auto normal = [&](std::uint32_t c) { return (to_float(a.x[start + c]) - statistics.x) * statistics.y; };
  const auto gradient = [&](std::uint32_t c) { return to_float(a.dy[start + c]) * to_float(a.weight[c]); };
  float sum = 0.0f, product = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    sum += gradient(c);
    product += gradient(c) * normal(c);
  }
  sum = warp_sum(sum) / a.width;
  product = warp_sum(product) / a.width;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    const float residual = a.dresidual == nullptr ? 0.0f : to_float(a.dresidual[start + c]);
    a.dx[start + c] = from_float<T>(residual + (gradient(c) - sum - normal(c) * product) * statistics.y);
  }
}

/// Elements of dy, or of dy times the normalised x.
template <class T, bool kNormal>
struct GradientTerms {
  const T* x;
  const T* dy;
  const float2* statistics;
  std::uint32_t width;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&value)[1]) const {
    const std::size_t at = static_cast<std::size_t>(row) * width + column;
    value[0] = to_float(dy[at]);
    if (kNormal) value[0] *= (to_float(x[at]) - statistics[row].x) * statistics[row].y;
  }
};

/// Whether rows of this width at these addresses can be taken in packs.
template <class... Pointers>
bool in_packs(std::int64_t width, Pointers... pointers) {
  return width % kPack == 0 && width <= kMaxWidth && (... && is_aligned(pointers, 16));
}

/// work(std::integral_constant<int, packs per lane>{})
template <class Work>
void with_packs(std::int64_t width, Work&& work) {
  switch (ceil_div(width, 32 * kPack)) {
    case 1:
      return work(std::integral_constant<int, 1>{});
    case 2:
      return work(std::integral_constant<int, 2>{});
    case 3:
      return work(std::integral_constant<int, 3>{});
    case 4:
      return work(std::integral_constant<int, 4>{});
    case 5:
      return work(std::integral_constant<int, 5>{});
    case 6:
    case 7:
      return work(std::integral_constant<int, 7>{});
    default:
      return work(std::integral_constant<int, kMaxPacks>{});
  }
}

template <class T, bool kAdd>
void forward(const Forward<T>& a, cudaStream_t stream) {
  const std::uint32_t blocks = ceil_div(a.rows, kWarps);
  if (in_packs(a.width, a.x, a.branch, a.weight, a.bias, a.sum, a.y)) {
    with_packs(a.width, [&](auto packs) { forward_kernel<T, packs.value, kAdd><<<blocks, kThreads, 0, stream>>>(a); });
  } else {
    any_width_forward_kernel<T, kAdd><<<blocks, kThreads, 0, stream>>>(a);
  }
  DDP_CUDA(cudaGetLastError());
}

template <class T, class G>
void backward(Backward<T> a, std::uint32_t blocks, G* dweight, G* dbias, bool accumulate, cudaStream_t stream) {
  if (in_packs(a.width, a.x, a.weight, a.dy, a.dresidual, a.dx)) {
    blocks = std::min(blocks, ceil_div(a.rows, kWarps));
    with_packs(a.width, [&](auto packs) { backward_kernel<T, packs.value><<<blocks, kThreads, 0, stream>>>(a); });
    DDP_CUDA(cudaGetLastError());
    const dim3 threads(kTotalsWidth, kTotalsHeight);
    const std::uint32_t groups = ceil_div(a.width, kTotalsWidth);
    column_totals<G><<<groups, threads, 0, stream>>>(a.partials, blocks, a.width, accumulate, dweight);
    column_totals<G><<<groups, threads, 0, stream>>>(a.partials + static_cast<std::size_t>(blocks) * a.width, blocks,
                                                     a.width, accumulate, dbias);
  } else {
    // dx last: it may be the memory of dy.
    sum_matrix_columns<1>(GradientTerms<T, true>{a.x, a.dy, a.statistics, a.width}, a.rows, a.width, a.partials,
                          accumulate, dweight, stream);
    sum_matrix_columns<1>(GradientTerms<T, false>{a.x, a.dy, a.statistics, a.width}, a.rows, a.width, a.partials,
                          accumulate, dbias, stream);
    any_width_backward_kernel<T><<<ceil_div(a.rows, kWarps), kThreads, 0, stream>>>(a);
  }
  DDP_CUDA(cudaGetLastError());
}

struct Rows {
  std::int64_t count, width;
};

Rows rows_of(const Tensor& x, const char* what) {
  require(!x.shape.empty() && x.shape.back() > 0, what);
  return {x.size() / x.shape.back(), x.shape.back()};
}

}  // namespace
}  // namespace cuda

void CudaBackend::layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                             const Tensor& statistics) {
  const cuda::Rows rows = cuda::rows_of(x, "layer_norm: x has no columns");
  expect_tensor(x, "layer_norm: x", dtype(), x.shape);
  expect_tensor(weight, "layer_norm: weight", dtype(), {rows.width});
  expect_tensor(bias, "layer_norm: bias", dtype(), {rows.width});
  expect_tensor(y, "layer_norm: y", dtype(), x.shape);
  expect_tensor(statistics, "layer_norm: statistics", DType::f32, {rows.count, 2});
  if (rows.count == 0) return;
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    cuda::forward<T, false>(
        {x.as<T>(), nullptr, weight.as<T>(), bias.as<T>(), nullptr, y.as<T>(), statistics.as<float2>(),
         static_cast<std::uint32_t>(rows.count), static_cast<std::uint32_t>(rows.width), 1, epsilon, Dropout{}},
        compute_.get());
  });
}

void CudaBackend::add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout,
                                 const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& sum,
                                 const Tensor& y, const Tensor& statistics) {
  const cuda::Rows rows = cuda::rows_of(residual, "add_layer_norm: the residual has no columns");
  cuda::require(dropout.rate <= 0.0f || residual.shape.size() == 3,
                "add_layer_norm: dropout needs [batch, sequence, width]");
  expect_tensor(residual, "add_layer_norm: residual", dtype(), residual.shape);
  expect_tensor(branch, "add_layer_norm: branch", dtype(), residual.shape);
  expect_tensor(weight, "add_layer_norm: weight", dtype(), {rows.width});
  expect_tensor(bias, "add_layer_norm: bias", dtype(), {rows.width});
  expect_tensor(sum, "add_layer_norm: sum", dtype(), residual.shape);
  expect_tensor(y, "add_layer_norm: y", dtype(), residual.shape);
  expect_tensor(statistics, "add_layer_norm: statistics", DType::f32, {rows.count, 2});
  if (rows.count == 0) return;
  const std::int64_t sequence = dropout.rate > 0.0f ? residual.dim(1) : 1;
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    cuda::forward<T, true>(
        {residual.as<T>(), branch.as<T>(), weight.as<T>(), bias.as<T>(), sum.as<T>(), y.as<T>(),
         statistics.as<float2>(), static_cast<std::uint32_t>(rows.count), static_cast<std::uint32_t>(rows.width),
         static_cast<std::uint32_t>(sequence), epsilon, dropout},
        compute_.get());
  });
}

void CudaBackend::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Tensor& dy,
                                      const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                      const Tensor& dbias, bool accumulate) {
  const cuda::Rows rows = cuda::rows_of(x, "layer_norm_backward: x has no columns");
  expect_tensor(x, "layer_norm_backward: x", dtype(), x.shape);
  expect_tensor(weight, "layer_norm_backward: weight", dtype(), {rows.width});
  expect_tensor(statistics, "layer_norm_backward: statistics", DType::f32, {rows.count, 2});
  expect_tensor(dy, "layer_norm_backward: dy", dtype(), x.shape);
  if (dresidual) expect_tensor(dresidual, "layer_norm_backward: dresidual", dtype(), x.shape);
  expect_tensor(dx, "layer_norm_backward: dx", dtype(), x.shape);
  expect_gradient(dweight, "layer_norm_backward: dweight", {rows.width});
  expect_tensor(dbias, "layer_norm_backward: dbias", dweight.dtype, {rows.width});
  const std::uint32_t blocks = 2 * static_cast<std::uint32_t>(compute_multiprocessors());
  auto* partials = scratch_.reserve_elements<float>(
      std::max<std::size_t>(cuda::column_scratch(rows.width), 2 * static_cast<std::size_t>(blocks * rows.width)),
      compute_.get());
  cuda::with_element(dtype(), [&](auto element) {
    using T = decltype(element);
    const cuda::Backward<T> a{x.as<T>(),
                              weight.as<T>(),
                              statistics.as<const float2>(),
                              dy.as<T>(),
                              dresidual.as<T>(),
                              dx.as<T>(),
                              partials,
                              static_cast<std::uint32_t>(rows.count),
                              static_cast<std::uint32_t>(rows.width)};
    cuda::with_element(dweight.dtype, [&](auto gradient) {
      using G = decltype(gradient);
      cuda::backward<T, G>(a, blocks, dweight.as<G>(), dbias.as<G>(), accumulate, compute_.get());
    });
  });
}

}  // namespace ddptrain
