#pragma once

#include "runtime/device/cuda/launch.cuh"
#include "runtime/ops/cuda/gemm/tile_product.cuh"
#include "runtime/ops/cuda/output_layer/softmax_part.cuh"
#include "runtime/ops/cuda/ptx/intrinsics.cuh"

// The gradient of the output layer's input: the gradients of the logits times the weight. Four warps of a thread block
// turn logits into gradients, write these back, and leave them in shared memory as the left operand of the product that
// eight warps compute (tile_product.cuh: multiply). So no pass over the logits is for the gradients alone.
//
// A thread block computes 128 rows and at most 256 columns, and a cluster of two blocks the 256 rows of a tile. A tile
// is a long sum with few others beside it. So the sums of all tiles are cut into equal shares, one for each cluster,
// wherever a tile ends. A tile that is cut has its sums in parts, which sum_parts_kernel adds up in a fixed order.
//
// Barriers in shared memory, with what ends a phase:
//   full[stage]   the bytes of the weight have come, from both blocks, and the converting warps have written their rows
//   empty[stage]  the multiplying warps of both blocks have read the stage

namespace ddptrain::cuda::gradient_product {

using namespace tile_product;

constexpr int kRing = 4;
constexpr int kConverters = 4;  // warps
constexpr int kUnit = kDepth;   // columns of logits
constexpr int kTileRows = kCluster * kRows;
using Role = Roles<kConverters - 1>;

struct alignas(1024) Memory {
  char left[kRing][kLeftBytes];
  char right[kRing][kRightBytes];
  std::uint64_t full[kRing];
  std::uint64_t empty[kRing];
};

/// The units of one tile after another, in equal shares.
struct Shares {
  int tiles, units;  ///< Units of each tile.
  int workers;       ///< Clusters, at most as many as all units.

  __host__ __device__ std::int64_t all() const { return static_cast<std::int64_t>(tiles) * units; }
  __host__ __device__ int begin(int worker) const { return static_cast<int>(all() * worker / workers); }
  /// The worker of unit number `unit` of all.
  __host__ __device__ int owner(int unit) const {
    return static_cast<int>(((static_cast<std::int64_t>(unit) + 1) * workers - 1) / all());
  }
  __host__ __device__ int first_owner(int tile) const { return owner(tile * units); }
  __host__ __device__ int last_owner(int tile) const { return owner(tile * units + units - 1); }
  __host__ __device__ int parts() const { return workers + tiles - 1; }
  /// The part of a worker's sums of a tile.
  static __host__ __device__ int part(int worker, int tile) { return worker + tile; }
};

/// Units [first, last) of a tile, which a worker sums up.
struct Segment {
  int tile, first, last;
};

/// work(segment) for each segment of this cluster.
template <class Work>
__device__ __forceinline__ void for_segments(const Shares& shares, const Work& work) {
  const int worker = static_cast<int>(blockIdx.x) / kCluster, end = shares.begin(worker + 1);
  for (int at = shares.begin(worker); at < end;) {
    const int tile = at / shares.units, first = at - tile * shares.units;
    const int last = min(shares.units, first + end - at);
    work(Segment{tile, first, last});
    at += last - first;
  }
}

struct Problem {
  bf16* logits;                  ///< [rows, columns]; then their gradients.
  const RowGradient* gradients;  ///< [rows]
  float* parts;                  ///< [parts of shares][kTileRows][kColumns]
  int rows, columns;             ///< Columns are a multiple of 8.
  int vocabulary;                ///< Columns that count.
  int width;                     ///< Columns of the product: at most kColumns, and a multiple of 8.
  Shares shares;
};

/// Turns the logits of a warp's 32 rows into gradients. A lane has 8 columns of a row in each item of four rows. The
/// columns of the targets and those that do not count are mended afterwards, by the lane that has the row's number.
class Converter {
 public:
  static constexpr int kItems = kRows / kConverters / 4;

  /// `first_row`: of the warp, in the matrix. `in_block`: the same in the tile of its block.
  __device__ __forceinline__ Converter(const Problem& p, int first_row, int in_block)
      : p_(p), first_row_(first_row), in_block_(in_block), mine_(p.gradients[min(first_row + lane(), p.rows - 1)]) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) shifts_[item] = p.gradients[min(row(item), p.rows - 1)].shift;
  }

  /// Starts reading the logits of the first unit.
  __device__ __forceinline__ void begin(int unit) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) read(unit, item);
  }
  /// Writes the gradients of a unit, to memory and to a left operand at the shared address `left`, and starts reading
  /// the next one, if it is before `end`.
  __device__ __forceinline__ void convert(int unit, int end, std::uint32_t left) {
#pragma unroll
    for (int item = 0; item < kItems; ++item) {
      const uint4 gradients = gradients_of(logits_[item], shifts_[item]);
      if (unit + 1 < end) read(unit + 1, item);
      store_shared(chunk_at(left, in_block_ + row(item) - first_row_, lane() % 8), gradients);
      const int column = column_of(unit);
      if (row(item) < p_.rows && column < p_.columns) store_at_once(at(row(item), column), gradients);
    }
    const bool has_target = static_cast<std::uint32_t>(mine_.target - unit * kUnit) < kUnit;
    if (__any_sync(kAllLanes, has_target || (unit + 1) * kUnit > p_.vocabulary)) mend(unit, has_target, left);
  }

 private:
  static __device__ __forceinline__ int lane() { return static_cast<int>(threadIdx.x) % 32; }
  static __device__ __forceinline__ int column_of(int unit) { return unit * kUnit + lane() % 8 * 8; }
  __device__ __forceinline__ int row(int item) const { return first_row_ + 4 * item + lane() / 8; }
  /// Of 8 columns.
  __device__ __forceinline__ uint4* at(int row, int column) const {
    return reinterpret_cast<uint4*>(p_.logits) + static_cast<std::uint32_t>(row * (p_.columns / 8) + column / 8);
  }
  __device__ __forceinline__ void read(int unit, int item) {
    logits_[item] = load_once(at(min(row(item), p_.rows - 1), min(column_of(unit), p_.columns - 8)));
  }

  static __device__ __forceinline__ std::uint32_t gradients_of(std::uint32_t pair, float shift) {
    const float2 logits = unpack_bf16(pair);
    return pack_bf16(shifted_exponential(logits.x, shift), shifted_exponential(logits.y, shift));
  }
  static __device__ __forceinline__ uint4 gradients_of(const uint4& logits, float shift) {
    return make_uint4(gradients_of(logits.x, shift), gradients_of(logits.y, shift), gradients_of(logits.z, shift),
                      gradients_of(logits.w, shift));
  }

  __device__ __forceinline__ void mend(int unit, bool has_target, std::uint32_t left) const {
    __syncwarp();  // other lanes have written these elements
    const int row = first_row_ + lane();
    const auto set = [&](int column, bf16 value) {
      store_shared(chunk_at(left, in_block_ + lane(), column % kUnit / 8) + column % 8 * 2, value);
      if (row >= p_.rows || column >= p_.columns) return;
      p_.logits[static_cast<std::size_t>(row) * static_cast<std::size_t>(p_.columns) + column] = value;
    };
    if (has_target) set(mine_.target, __float2bfloat16(mine_.at_target));
    const int end = (unit + 1) * kUnit;
#pragma unroll 1
    for (int column = max(unit * kUnit, p_.vocabulary); column < end; ++column) set(column, __float2bfloat16(0.0f));
  }

  const Problem& p_;
  int first_row_, in_block_;
  RowGradient mine_;  ///< Of the row that has the lane's number.
  float shifts_[kItems];
  uint4 logits_[kItems];
};

/// One unit is on its way to registers, and kPrefetched units to L2. One thread also fetches the weight.
__device__ __forceinline__ void convert_segments(const Maps& maps, const Problem& p, Memory& shared) {
  constexpr int kPrefetched = 4;
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32) - kWarps;
  const int in_block = warp * (kRows / kConverters);
  const bool fetches = static_cast<int>(threadIdx.x) == kMultiplying;
  Turn<kRing> turn;
  for_segments(p.shares, [&](const Segment& segment) {
    const int first_row = segment.tile * kTileRows + static_cast<int>(block_in_cluster()) * kRows;
    const auto prefetch = [&](int unit) {
      if (unit < segment.last) prefetch_tile(maps.left, unit * kUnit, first_row);
    };
    for (int i = 1; fetches && i < kPrefetched; ++i) prefetch(segment.first + i);
    Converter rows(p, first_row + in_block, in_block);
    rows.begin(segment.first);
#pragma unroll 1
    for (int unit = segment.first; unit < segment.last; ++unit, turn.advance()) {
      std::uint64_t* const full = &shared.full[turn.stage];
      await_phase(&shared.empty[turn.stage], turn.parity ^ 1);
      if (fetches) {
        expect_bytes(full, kRightBytes);
        fetch_rows_of_right(maps.right, shared, turn.stage, 0, unit * kUnit);
        prefetch(unit + kPrefetched);
      }
      __syncwarp();
      rows.convert(unit, segment.last, shared_address(shared.left[turn.stage]));
      fence_async_proxy();
      __syncwarp();
      if (threadIdx.x % 32 == 0) arrive(full);
    }
  });
}

/// Writes the sums of a warp's 16 rows. `row`: the first of them in the tile.
__device__ __forceinline__ void write_part(const Problem& p, const Sums& sums, int part, int row, int lane) {
  const std::size_t first = static_cast<std::size_t>(part) * kTileRows + row + lane / 4;
  float* const to = p.parts + first * kColumns + lane % 4 * 2;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
#pragma unroll
    for (int i = 0; i < kColumns / 16; ++i) {
      const int column = half * kColumns / 2 + 8 * i;
      const float* const four = &sums[half][4 * i];
      if (column >= p.width) continue;
      __stcg(reinterpret_cast<float2*>(to + column), make_float2(four[0], four[1]));
      __stcg(reinterpret_cast<float2*>(to + column + 8 * kColumns), make_float2(four[2], four[3]));
    }
  }
}

__device__ __forceinline__ void multiply_segments(const Problem& p, Memory& shared) {
  const int warp = uniform(static_cast<int>(threadIdx.x) / 32);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int worker = static_cast<int>(blockIdx.x) / kCluster;
  Turn<kRing> turn;
  for_segments(p.shares, [&](const Segment& segment) {
    Sums sums;
    multiply<Role::kWide, true>((segment.last - segment.first) * kUnit, shared, warp / 4, lane, turn, sums);
    const int row = static_cast<int>(block_in_cluster()) * kRows + warp * 16;
    write_part(p, sums, Shares::part(worker, segment.tile), row, lane);
  });
}

/// maps: of the logits, in tiles of 128 rows, and of the weight [columns, at least p.width], in tiles of 64. A cluster
/// for each worker.
__global__ void __launch_bounds__(Role::kThreads, 1)
    gradient_product_kernel(const __grid_constant__ Maps maps, const Problem p) {
#if DDP_WGMMA
  Memory& shared = *reinterpret_cast<Memory*>(dynamic_shared_memory());
  if (threadIdx.x == 0) {
    for (int i = 0; i < kRing; ++i) {
      init_barrier(&shared.full[i], 1 + kConverters);
      init_barrier(&shared.empty[i], kWarps * kCluster);
    }
    publish_barriers();
  }
  __syncwarp();
  synchronize_cluster();
  if (threadIdx.x < kMultiplying) {
    take_registers<Role::kTaken>();
    multiply_segments(p, shared);
  } else {
    leave_registers<Role::kLeft>();
    convert_segments(maps, p, shared);
  }
  __syncwarp();
  synchronize_cluster();  // the other block still writes here
#endif
}

constexpr int kSumThreads = 256;
constexpr int kSumColumns = 8;  // of a thread

/// dx [rows, columns_of_dx]: its first p.width columns are the sums of the parts.
__global__ void __launch_bounds__(kSumThreads) sum_parts_kernel(const Problem p, bf16* dx, int columns_of_dx) {
  const int threads_of_row = p.width / kSumColumns;
  const int index = static_cast<int>(blockIdx.x) * kSumThreads + static_cast<int>(threadIdx.x);
  const int row = index / threads_of_row, column = index % threads_of_row * kSumColumns;
  wait_for_predecessor();
  if (row >= p.rows) return;
  float sums[kSumColumns] = {};
  const int tile = row / kTileRows, last = p.shares.last_owner(tile);
  for (int worker = p.shares.first_owner(tile); worker <= last; ++worker) {
    const std::size_t part_row = static_cast<std::size_t>(Shares::part(worker, tile)) * kTileRows + row % kTileRows;
    const auto* from = reinterpret_cast<const float4*>(p.parts + part_row * kColumns + column);
#pragma unroll
    for (int i = 0; i < kSumColumns / 4; ++i) {
      const float4 part = __ldcg(from + i);
      sums[4 * i] += part.x;
      sums[4 * i + 1] += part.y;
      sums[4 * i + 2] += part.z;
      sums[4 * i + 3] += part.w;
    }
  }
  const uint4 rounded = make_uint4(pack_bf16(sums[0], sums[1]), pack_bf16(sums[2], sums[3]),
                                   pack_bf16(sums[4], sums[5]), pack_bf16(sums[6], sums[7]));
  bf16* const to = dx + static_cast<std::size_t>(row) * static_cast<std::size_t>(columns_of_dx) + column;
  store_at_once(reinterpret_cast<uint4*>(to), rounded);
}

}  // namespace ddptrain::cuda::gradient_product
