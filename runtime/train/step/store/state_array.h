#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/train/model.h"

namespace ddptrain {

/// How an array of the training state is distributed over the ranks.
enum class Placement : std::uint8_t {
  replicated,  ///< Every rank has the whole array, with the same values.
  sharded,     ///< Each rank has one shard.
  per_rank,    ///< Every rank has an array of its own.
};

/// A named array of the training state, with this rank's pieces of it.
struct StateArray {
  struct Piece {
    std::int64_t begin;  ///< Index of its first element in this rank's slice of the array, row-major.
    Tensor values;       ///< [count]
  };

  std::string name;
  Split slice;  ///< This rank's slice of the array if layers are split; otherwise the whole array.
  DType dtype;
  Placement placement;
  std::vector<Piece> pieces;
  bool is_copy = false;  ///< See ParameterSpec.

  const Shape& shape() const { return slice.whole; }
};

}  // namespace ddptrain
