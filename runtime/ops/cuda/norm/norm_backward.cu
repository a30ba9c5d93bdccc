#include <algorithm>

#include "runtime/ops/cuda/column_sums.cuh"
#include "runtime/ops/cuda/norm/norm.cuh"
#include "runtime/ops/cuda/ptx/async_copy.cuh"
#include "runtime/ops/cuda/reduce.cuh"

namespace ddptrain {

namespace cuda::norm {
namespace {

constexpr int kBackwardBlocks = 2;         // of a multiprocessor, at most
constexpr std::uint32_t kRowsOfGroup = 2;  // that those who share a row take at least, if there are few rows

template <class T>
struct Backward {
  const T* x;
  const T* weight;
  const float* statistics;
  const T* dy;
  const T* dresidual;
  T* dx;
  float* partials;  ///< [kSums, blocks, width]: of dweight, of dbias if it is a layer norm, of dx_sums.
  std::uint32_t rows, width;
  bool has_dx_sums;
  Others<T> others;  ///< Of dy.
};

/// Sums over the rows that a norm has at most.
template <Kind kKind>
constexpr int kSums = kKind == Kind::layer ? 3 : 2;

/// Rows of x, dy and dresidual that a warp works on in turn, fetched while it works on earlier rows. A lane fetches and
/// reads its own elements alone.
template <class T, int kPacks>
struct Stage {
  static constexpr int kInputs = 3;
  Pack<T, kPack> pack[kInputs][kPacks][32];
};
constexpr int kStages = 2;

template <class T>
__device__ __forceinline__ void fetch_pack(const T* from, Pack<T, kPack>& to) {
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(&to));
#pragma unroll
  for (std::uint32_t byte = 0; byte < sizeof(to); byte += 16) {
    start_copy(address + byte, reinterpret_cast<const char*>(from) + byte);
  }
}

/// Sum over the warps of a group; of an RMS norm, of y alone. `shared` is of the group, and another one than at the
/// call before.
template <Kind kKind, int kGroup>
__device__ __forceinline__ float2 group_sum(float2 value, float2 (&shared)[kGroup]) {
  value = make_float2(kKind == Kind::layer ? warp_sum(value.x) : 0.0f, warp_sum(value.y));
  if constexpr (kGroup > 1) {
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32 % kGroup] = value;
    meet_group<kGroup>();
    value = shared[0];
#pragma unroll
    for (int i = 1; i < kGroup; ++i) value = make_float2(value.x + shared[i].x, value.y + shared[i].y);
  }
  return value;
}

/// The part of a lane of the column sums.
template <Kind kKind, int kPacks>
using LaneSums = float[kSums<kKind>][kPacks][kPack];

/// Adds up the groups' sums in order and writes them to the block's rows of `partials`.
template <class T, Kind kKind, int kPacks, int kGroup>
__device__ __forceinline__ void store_partials(const Backward<T>& a, const LaneSums<kKind, kPacks>& sums,
                                               float* shared) {
  constexpr std::uint32_t kColumns = 32 * kPack * kPacks * kGroup;
  constexpr std::uint32_t kGroups = kWarps / kGroup;
  const Place<kGroup> place;
  const std::uint32_t group = threadIdx.x / (32 * kGroup);
  __syncthreads();
#pragma unroll
  for (int which = 0; which < kSums<kKind>; ++which) {
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      store<kPack>(sums[which][i], shared + (which * kGroups + group) * kColumns + place.column(i));
    }
  }
  __syncthreads();
  const std::uint32_t wanted = (kSums<kKind> - (a.has_dx_sums ? 0 : 1)) * a.width;
  for (std::uint32_t c = threadIdx.x; c < wanted; c += kThreads) {
    const std::uint32_t which = c / a.width, column = c % a.width;
    float total = 0.0f;
#pragma unroll
    for (std::uint32_t i = 0; i < kGroups; ++i) total += shared[(which * kGroups + i) * kColumns + column];
    a.partials[(static_cast<std::size_t>(which) * gridDim.x + blockIdx.x) * a.width + column] = total;
  }
}

/// kGroup warps take a row.
template <class T, Kind kKind, int kPacks, int kGroup>
__global__ void __launch_bounds__(kThreads, kBackwardBlocks) backward_kernel(const Backward<T> a) {
  extern __shared__ uint4 memory[];
  __shared__ float2 exchanged[2][kWarps / kGroup][kGroup];
  auto* stages = reinterpret_cast<Stage<T, kPacks>*>(memory) + threadIdx.x / 32 * kStages;
  const Place<kGroup> place;
  const std::uint32_t group = threadIdx.x / (32 * kGroup);
  const std::uint32_t step = gridDim.x * (kWarps / kGroup);
  const float per_column = 1.0f / static_cast<float>(a.width);
  const auto fetch_row = [&](std::uint32_t row, Stage<T, kPacks>& stage) {
    const std::size_t start = static_cast<std::size_t>(row) * a.width;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      const std::size_t at = start + place.column(i);
      if (row >= a.rows || place.column(i) >= a.width) continue;
      fetch_pack(a.x + at, stage.pack[0][i][place.lane]);
      fetch_pack(a.dy + at, stage.pack[1][i][place.lane]);
      if (a.dresidual != nullptr) fetch_pack(a.dresidual + at, stage.pack[2][i][place.lane]);
    }
    end_copies();
  };
  Pack<T, kPack> weight[kPacks] = {};
#pragma unroll
  for (int i = 0; i < kPacks; ++i) {
    if (place.column(i) < a.width) weight[i] = *reinterpret_cast<const Pack<T, kPack>*>(a.weight + place.column(i));
  }
  LaneSums<kKind, kPacks> sums = {};
  float(&dx_sums)[kPacks][kPack] = sums[kSums<kKind> - 1];
  int at = 0;
  std::uint32_t row = blockIdx.x * (kWarps / kGroup) + group;
  float2 next_statistics = row < a.rows ? statistics_of<kKind>(a.statistics, row) : float2{};
  fetch_row(row, stages[0]);
  for (; row < a.rows; row += step, at = 1 - at) {
    const float2 statistics = next_statistics;
    if (row + step < a.rows) next_statistics = statistics_of<kKind>(a.statistics, row + step);
    fetch_row(row + step, stages[1 - at]);
    await_copies<1>();
    const auto input = [&](int which, int i, float(&value)[kPack]) {
      load<kPack>(stages[at].pack[which][i][place.lane].value, value);
    };
    float2 total = {};
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (place.column(i) >= a.width) continue;
      float x[kPack], dy[kPack];
      input(0, i, x);
      input(1, i, dy);
      if (a.others.count > 0) {
        a.others.add(static_cast<std::size_t>(row) * a.width + place.column(i), dy);
        store<kPack>(dy, stages[at].pack[1][i][place.lane].value);  // for the second round
      }
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normal = (x[k] - statistics.x) * statistics.y;
        const float gradient = dy[k] * to_float(weight[i].value[k]);
        sums[0][i][k] += dy[k] * normal;
        if constexpr (kKind == Kind::layer) {
          sums[1][i][k] += dy[k];
          total.x += gradient;
        }
        total.y += gradient * normal;
      }
    }
    total = group_sum<kKind, kGroup>(total, exchanged[at][group]);
    const float offset = kKind == Kind::layer ? total.x * per_column : 0.0f;
    const float slope = total.y * per_column;
#pragma unroll
    for (int i = 0; i < kPacks; ++i) {
      if (place.column(i) >= a.width) continue;
      float x[kPack], dy[kPack], dx[kPack] = {};
      input(0, i, x);
      input(1, i, dy);
      if (a.dresidual != nullptr) input(2, i, dx);
#pragma unroll
      for (int k = 0; k < kPack; ++k) {
        const float normal = (x[k] - statistics.x) * statistics.y;
        dx[k] += (dy[k] * to_float(weight[i].value[k]) - offset - normal * slope) * statistics.y;
        dx_sums[i][k] += dx[k];
      }
      store<kPack>(dx, a.dx + static_cast<std::size_t>(row) * a.width + place.column(i));
    }
  }
  let_successor_start();
  store_partials<T, kKind, kPacks, kGroup>(a, sums, reinterpret_cast<float*>(memory));
}

template <class T, Kind kKind>
__global__ void __launch_bounds__(kThreads) any_width_backward_kernel(const Backward<T> a) {
  const std::uint32_t row = warp_row();
  if (row >= a.rows) return;
  const std::size_t start = static_cast<std::size_t>(row) * a.width;
  const float2 statistics = statistics_of<kKind>(a.statistics, row);
  const auto normal = [&](std::uint32_t c) { return (to_float(a.x[start + c]) - statistics.x) * statistics.y; };
  const auto gradient = [&](std::uint32_t c) { return to_float(a.dy[start + c]) * to_float(a.weight[c]); };
  float sum = 0.0f, product = 0.0f;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    sum += gradient(c);
    product += gradient(c) * normal(c);
  }
  sum = kKind == Kind::layer ? warp_sum(sum) / a.width : 0.0f;
  product = warp_sum(product) / a.width;
  for (std::uint32_t c = threadIdx.x % 32; c < a.width; c += 32) {
    const float residual = a.dresidual == nullptr ? 0.0f : to_float(a.dresidual[start + c]);
    a.dx[start + c] = from_float<T>(residual + (gradient(c) - sum - normal(c) * product) * statistics.y);
  }
}

/// Elements of dy, or of dy times the normalised x.
template <class T, Kind kKind, bool kNormal>
struct GradientTerms {
  const T* x;
  const T* dy;
  const float* statistics;
  std::uint32_t width;

  __device__ void operator()(std::uint32_t row, std::uint32_t column, float (&value)[1]) const {
    const std::size_t at = static_cast<std::size_t>(row) * width + column;
    value[0] = to_float(dy[at]);
    if (!kNormal) return;
    const float2 of_row = statistics_of<kKind>(statistics, row);
    value[0] *= (to_float(x[at]) - of_row.x) * of_row.y;
  }
};

template <class T>
constexpr std::size_t staged_bytes(int packs) {
  return static_cast<std::size_t>(packs) * sizeof(Stage<T, 1>) * kStages * kWarps;
}

template <class T, Kind kKind, int kPacks, int kGroup>
std::uint32_t launch_backward(const Backward<T>& a, int multiprocessors, cudaStream_t stream) {
  constexpr std::size_t kBytes = staged_bytes<T>(kPacks);
  static_assert(kBytes == sizeof(Stage<T, kPacks>) * kStages * kWarps);
  static_assert(kBytes >= kSums<kKind> * sizeof(float) * kWarps * 32 * kPack * kPacks && kBytes <= 227 * 1024);
  const auto kernel = backward_kernel<T, kKind, kPacks, kGroup>;
  reserve_shared_memory(kernel, kBytes);
  int resident = 0;
  DDP_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&resident, kernel, kThreads, kBytes));
  const auto most = static_cast<std::uint32_t>(std::clamp(resident, 1, kBackwardBlocks) * multiprocessors);
  const std::uint32_t blocks = std::clamp(ceil_div(a.rows, kRowsOfGroup * (kWarps / kGroup)), 1u, most);
  launch_kernel(kernel, blocks, kThreads, kBytes, stream, a);
  return blocks;
}

/// Whether few warps with much memory each fit.
template <class T>
bool fits_large_stages() {
  return staged_bytes<T>(3) <= shared_memory_limit();
}
template <class T>
std::int64_t max_width() {
  return fits_large_stages<T>() ? 6144 : 2048;
}

/// If they do not fit, more warps take a row.
template <class T, Kind kKind>
std::uint32_t launch_small_backward(const Backward<T>& a, int multiprocessors, cudaStream_t stream) {
  switch (ceil_div(a.width, 32 * kPack)) {
    case 1:
      return launch_backward<T, kKind, 1, 1>(a, multiprocessors, stream);
    case 2:
      return launch_backward<T, kKind, 1, 2>(a, multiprocessors, stream);
    case 3:
    case 4:
      return launch_backward<T, kKind, 1, 4>(a, multiprocessors, stream);
    default:
      return launch_backward<T, kKind, 1, 8>(a, multiprocessors, stream);
  }
}

/// Returns the number of blocks.
template <class T, Kind kKind>
std::uint32_t launch_backward(const Backward<T>& a, int multiprocessors, cudaStream_t stream) {
  if (!fits_large_stages<T>()) return launch_small_backward<T, kKind>(a, multiprocessors, stream);
  if (a.width > 4096) return launch_backward<T, kKind, 3, 8>(a, multiprocessors, stream);
  if (a.width > 2048) return launch_backward<T, kKind, 2, 8>(a, multiprocessors, stream);
  switch (ceil_div(a.width, 32 * kPack)) {
    case 1:
      return launch_backward<T, kKind, 1, 1>(a, multiprocessors, stream);
    case 2:
      return launch_backward<T, kKind, 2, 1>(a, multiprocessors, stream);
    case 3:
      return launch_backward<T, kKind, 3, 1>(a, multiprocessors, stream);
    case 4:
      return launch_backward<T, kKind, 2, 2>(a, multiprocessors, stream);
    case 5:
    case 6:
      return launch_backward<T, kKind, 3, 2>(a, multiprocessors, stream);
    default:
      return launch_backward<T, kKind, 2, 4>(a, multiprocessors, stream);
  }
}

/// Rows that are not made of packs. dx is computed behind the sums that read dy, whose memory it may be.
template <class T, Kind kKind>
void any_width_backward(const Backward<T>& a, const Tensor& dweight, const Tensor& dbias, const Tensor& dx_sums,
                        bool accumulate, Scratch& scratch, cudaStream_t stream) {
  const auto sum = [&](const auto& values, const Tensor& to) {
    sum_matrix_columns<1>(values, a.rows, a.width, scratch, accumulate, to, stream);
  };
  sum(GradientTerms<T, kKind, true>{a.x, a.dy, a.statistics, a.width}, dweight);
  if (dbias) sum(GradientTerms<T, kKind, false>{a.x, a.dy, a.statistics, a.width}, dbias);
  launch_kernel(any_width_backward_kernel<T, kKind>, ceil_div(a.rows, kWarps), kThreads, 0, stream, a);
  if (dx_sums) sum(GradientTerms<T, kKind, false>{a.x, a.dx, a.statistics, a.width}, dx_sums);
}

}  // namespace
}  // namespace cuda::norm

namespace norm = cuda::norm;

template <norm::Kind kKind>
void CudaNorms::backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                         const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                         const Tensor& dx_sums, bool accumulate) {
  const std::int64_t width = weight.dim(0);
  cuda::with_element(dtype(), [&]<class T>(T) {
    norm::Backward<T> a{x.as<T>(),
                        weight.as<T>(),
                        statistics.as<const float>(),
                        dy.first().as<T>(),
                        dresidual.as<T>(),
                        dx.as<T>(),
                        nullptr,
                        static_cast<std::uint32_t>(statistics.dim(0)),
                        static_cast<std::uint32_t>(width),
                        static_cast<bool>(dx_sums),
                        {}};
    const bool in_packs = norm::in_packs(width, norm::max_width<T>(), a.x, a.weight, a.dy, a.dresidual, a.dx);
    a.others = others<T>(dy, in_packs);
    if (!in_packs) {
      return norm::any_width_backward<T, kKind>(a, dweight, dbias, dx_sums, accumulate, scratch(), stream());
    }
    const auto most_blocks = static_cast<std::size_t>(norm::kBackwardBlocks * device_.multiprocessors());
    const std::size_t most = norm::kSums<kKind> * most_blocks * static_cast<std::size_t>(width);
    a.partials = scratch().reserve_elements<float>(most, stream());
    const std::uint32_t blocks = norm::launch_backward<T, kKind>(a, multiprocessors(), stream());
    const auto add = [&](const auto& sums) {
      cuda::add_column_partials(a.partials, blocks, width, accumulate, sums, stream());
    };
    if constexpr (kKind == norm::Kind::layer) {
      dx_sums ? add(std::array{dweight, dbias, dx_sums}) : add(std::array{dweight, dbias});
    } else {
      dx_sums ? add(std::array{dweight, dx_sums}) : add(std::array{dweight});
    }
  });
}

void CudaNorm::layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                   const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                   const Tensor& dbias, const Tensor& dx_sums, bool accumulate) {
  check_layer_norm_backward(x, weight, statistics, dy, dresidual, dx, dweight, dbias, dx_sums, dtype());
  backward<norm::Kind::layer>(x, weight, statistics, dy, dresidual, dx, dweight, dbias, dx_sums, accumulate);
}

void CudaRmsNorm::rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                    const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                    const Tensor& dx_sums, bool accumulate) {
  check_rms_norm_backward(x, weight, statistics, dy, dresidual, dx, dweight, dx_sums, dtype());
  backward<norm::Kind::rms>(x, weight, statistics, dy, dresidual, dx, dweight, {}, dx_sums, accumulate);
}

}  // namespace ddptrain
