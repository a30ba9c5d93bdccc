#pragma once

#include <cstddef>
#include <cstdint>

#include "runtime/core/random.h"
#include "runtime/device/cuda/pieces.h"
#include "runtime/ops/shapes.h"

/// Sizes of the custom kernels of attention: of their tiles, of their work and of their workspaces. Kernels, launches
/// and the plan of a run (runtime/ops/attention/attention_plan.h) read them here. Builds without CUDA compile this
/// header.

namespace ddptrain::cuda::attention_wgmma {

constexpr int kHead = 64;
constexpr int kRows = 64;  // of a tile: queries, or the keys of a warpgroup
constexpr int kWarpgroups = 2;
constexpr int kKeys = kWarpgroups * kRows;  // of a block
constexpr int kPack = 8;
constexpr std::size_t kSharedBytes = 153 * 1024;  // sizeof(Shared)

/// Shared memory of a thread block without resident sums of dq.
constexpr std::size_t least_shared_bytes(std::int64_t sequence) {
  return kSharedBytes + static_cast<std::size_t>(sequence) * sizeof(float);
}

/// Number of thread blocks. `multiprocessors`: as many as may work at a time.
constexpr std::int64_t grid(const AttentionShape& shape, int multiprocessors) {
  const std::int64_t heads = shape.batch * shape.heads;
  return heads < multiprocessors ? heads : multiprocessors;
}

struct Workspace {
  float* partial_dq;
  void* parts;  ///< Of dk and dv, in bf16: [rows, 2, heads, kHead]. Empty if no heads share a key.
  std::size_t bytes;

  Workspace(void* memory, const AttentionShape& s, int multiprocessors) {
    Pieces pieces(memory);
    const std::int64_t rows = s.key_heads != s.heads ? s.batch * s.sequence : 0;
    partial_dq = pieces.take<float>(static_cast<std::size_t>(grid(s, multiprocessors) * s.sequence * kHead));
    parts = pieces.take<std::uint16_t>(static_cast<std::size_t>(2 * rows * s.width()));
    bytes = pieces.bytes();
  }
};

}  // namespace ddptrain::cuda::attention_wgmma

namespace ddptrain::cuda::attention_short {

constexpr int kTile = 16;
constexpr int kMaxTiles = 8;
constexpr int kMostHead = 128;
constexpr int kWeightBytes = kTile * kTile * 2;

constexpr int tiles_of(std::int64_t sequence) { return static_cast<int>((sequence + kTile - 1) / kTile); }
/// Columns that the kernel for these heads has.
constexpr int columns_of(std::int64_t head_size) { return head_size <= 64 ? 64 : kMostHead; }
/// Shared memory of a thread block: queries, keys, values and gradients, then probabilities and gradients of scores.
constexpr std::size_t shared_bytes(int tiles, int columns) {
  return static_cast<std::size_t>(tiles) * (4 * kTile * columns * 2 + (tiles + 1) * kWeightBytes);
}

}  // namespace ddptrain::cuda::attention_short

namespace ddptrain::cuda::attention_128 {

constexpr int kHead = 128;
constexpr int kRows = 64;  // of a tile: those of a warpgroup's product
constexpr int kColumns = 64;
constexpr int kTileBytes = kRows * kColumns * 2;
constexpr int kWarpgroups = 2;                   // that multiply
constexpr int kBlockRows = kWarpgroups * kRows;  // queries or keys that two warpgroups have
constexpr int kPack = 8;

/// Rows of qkv have all queries, then all keys, then all values.
struct Sizes {
  int batch, sequence, heads, key_heads;

  DDP_HOST_DEVICE int queries() const { return heads / key_heads; }  // heads that share a key
  DDP_HOST_DEVICE int blocks() const { return sequence / kBlockRows; }
  DDP_HOST_DEVICE int tiles() const { return sequence / kRows; }
  DDP_HOST_DEVICE int width() const { return heads * kHead; }
  DDP_HOST_DEVICE int key_width() const { return key_heads * kHead; }
  DDP_HOST_DEVICE int columns() const { return width() + 2 * key_width(); }  // of qkv
};

inline Sizes sizes_of(const AttentionShape& s) {
  return {static_cast<int>(s.batch), static_cast<int>(s.sequence), static_cast<int>(s.heads),
          static_cast<int>(s.key_heads)};
}

/// The unit of work that a thread block takes in a round. Units with the most steps come first. Thread blocks take them
/// in this order and in the opposite one by turns, so that all have about as many steps.
DDP_HOST_DEVICE constexpr int unit_of(int round, int block, int blocks) {
  return round * blocks + (round % 2 == 0 ? block : blocks - 1 - block);
}

}  // namespace ddptrain::cuda::attention_128

namespace ddptrain::cuda::attention_forward_128 {

using namespace attention_128;

constexpr int kKeys = kBlockRows;                 // of a step
constexpr std::size_t kSharedBytes = 225 * 1024;  // sizeof(Shared)

}  // namespace ddptrain::cuda::attention_forward_128

namespace ddptrain::cuda::attention_wgmma_128 {

using namespace attention_128;

constexpr int kKeys = kBlockRows;                 // of a unit
constexpr std::size_t kSharedBytes = 227 * 1024;  // sizeof(KeysShared)

/// Tiles of a head of queries: kernels count them in 31 bits.
DDP_HOST_DEVICE constexpr std::size_t dscore_tiles(int blocks) {
  return static_cast<std::size_t>(2 * blocks) * (blocks + 1);
}
/// `heads`: of all samples.
constexpr std::size_t dscore_bytes(std::size_t heads, int blocks) { return heads * dscore_tiles(blocks) * kTileBytes; }

/// The work of keys_kernel.
struct Work : Sizes {
  int parts;  ///< Of the heads of queries that share a key.
};

/// Sizes that follow from those of Work, or of a Problem.
template <class WorkLike>
DDP_HOST_DEVICE int queries_before(const WorkLike& w, int part) {
  return part * w.queries() / w.parts;
}
template <class WorkLike>
DDP_HOST_DEVICE int groups_of(const WorkLike& w) {
  return w.batch * w.key_heads * w.parts;
}
template <class WorkLike>
DDP_HOST_DEVICE int units_of(const WorkLike& w) {
  return groups_of(w) * w.blocks();
}

struct Workspace {
  float* deltas;
  char* dscores;
  void* parts;  ///< Of dk and dv, in bf16: [rows, 2, key_heads, parts, kHead]. Empty if there is one part.
  std::size_t bytes;

  Workspace(void* memory, const Work& w) {
    Pieces pieces(memory);
    const auto heads = static_cast<std::size_t>(w.batch) * w.heads,
               rows = static_cast<std::size_t>(w.batch) * w.sequence;
    deltas = pieces.take<float>(heads * w.sequence);
    dscores = pieces.take<char>(dscore_bytes(heads, w.blocks()));
    parts = pieces.take<std::uint16_t>(w.parts > 1 ? 2 * rows * w.key_heads * w.parts * kHead : 0);
    bytes = pieces.bytes();
  }
};

}  // namespace ddptrain::cuda::attention_wgmma_128
