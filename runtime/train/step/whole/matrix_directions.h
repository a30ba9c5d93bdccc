#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizers/orthogonal.h"
#include "runtime/train/model.h"
#include "runtime/train/step/store/parameter_arena.h"

namespace ddptrain {

/// A parameter that consists of matrices: see ParameterSpec::matrix_rows.
struct MatrixParameter {
  std::size_t parameter = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  std::vector<RowBlocks> matrices;

  double cost() const;  ///< Relative time of finding the directions of its matrices.
};

/// The parameters of `specs` that consist of matrices, in order. Error if the rows of a parameter are no multiple of
/// those of its matrices, or if ranks split it.
std::vector<MatrixParameter> matrix_parameters(const std::vector<ParameterSpec>& specs);

/// The rank of `ranks` that works on each of these parameters. The largest is dealt first, always to the rank that has
/// the least to do.
std::vector<int> deal(const std::vector<MatrixParameter>& parameters, int ranks);

/// The directions in which an optimizer moves matrices (Muon). Each depends on the whole gradient of its matrix. The
/// parameters are dealt among the ranks, which then broadcast the directions. So every rank updates its weights as with
/// any other rule, and the bits do not depend on the number of ranks.
class MatrixDirections {
 public:
  /// The arena outlives the object.
  explicit MatrixDirections(const ParameterArena& arena);

  /// Replaces the reduced gradients of all matrices by their directions, on the compute stream. `ranks`: see
  /// WeightStore::working_ranks(). If the arena is sharded, the ranks first gather the gradients. Waits for messages of
  /// MPI. Collective among `ranks`.
  void find(Communicator* ranks);
  /// The communication of find() alone.
  void send(Communicator& ranks);

  static std::size_t bytes(const ParameterArena& arena);  ///< Device memory.
  /// What send() sends: gathers and broadcasts, and the bytes of them.
  static Sent sends(const ParameterArena& arena);

 private:
  void gather(Communicator& ranks);
  void orthogonalise(const Communicator* ranks);
  void broadcast(Communicator& ranks);

  const ParameterArena& arena_;
  Device& device_;
  OrthogonalOps& ops_;
  std::vector<MatrixParameter> parameters_;
  std::vector<int> owners_;        ///< Per element of parameters_: the rank that finds its directions.
  std::vector<Tensor> gradients_;  ///< Per element of parameters_: [rows, columns]
  Buffer workspace_;
};

}  // namespace ddptrain
