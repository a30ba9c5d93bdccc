#pragma once

#include <cstdint>

#include "runtime/ops/family.h"

namespace ddptrain {

/// The rows of `values` of which a matrix consists: `run` rows from row `first` on, and as many from every further
/// multiple of `stride` after `first`.
struct RowBlocks {
  std::int64_t first = 0;
  std::int64_t run = 0;
  std::int64_t stride = 0;

  /// The number of the matrix's rows if `values` has `rows_of_values`.
  std::int64_t rows(std::int64_t rows_of_values) const { return rows_of_values / stride * run; }
  /// The row of `values` that is row `row` of the matrix.
  DDP_HOST_DEVICE std::int64_t at(std::int64_t row) const { return first + row / run * stride + row % run; }
};

/// Orthogonal matrices, for optimizers whose update of a matrix needs the whole matrix.
class OrthogonalOps : public Family<OrthogonalOps> {
 public:
  /// Replaces the matrix in these rows of `values` [rows, columns], which has the singular value decomposition U S V^T,
  /// by scale * U S' V^T. S' has about 0.7 to 1.2 in place of every singular value that is above a hundredth of the
  /// norm. Makes five Newton-Schulz steps with the coefficients of Jordan et al. 2024 (Muon). Zeros stay zeros.
  /// `values` is of bf16 or the type of master weights; products are in compute precision. `workspace` is aligned as a
  /// Buffer. The bits do not depend on the number of threads.
  virtual void orthogonalise(const Tensor& values, const RowBlocks& rows, float scale, const Tensor& workspace) = 0;

  /// Elements of the workspace for a matrix, in compute precision.
  static std::int64_t workspace_size(std::int64_t rows, std::int64_t columns);

  static std::unique_ptr<OrthogonalOps> on_cpu(Device& device);
  static std::unique_ptr<OrthogonalOps> on_cuda(Device& device);
};

/// An iteration replaces X by (a + b A + c A^2) X, in which A = X X^T, or by X (a + b A + c A^2) with A = X^T X,
/// whichever A is smaller.
struct NewtonSchulz {
  static constexpr int kIterations = 5;
  static constexpr float kA = 3.4445f;
  static constexpr float kB = -4.7750f;
  static constexpr float kC = 2.0315f;
  static constexpr float kEpsilon = 1e-20f;  ///< Added to the norm by which X is divided at the start. For zeros.
};

/// The matrices in a workspace, each of which begins at a multiple of 64 elements. `side` is the smaller one of rows
/// and columns.
struct OrthogonalWorkspace {
  Tensor x;       ///< [rows, columns]
  Tensor next_x;  ///< [rows, columns]
  Tensor gram;    ///< [side, side]: A
  Tensor square;  ///< [side, side]: A^2, then the polynomial.
};

/// The matrices in the workspace of orthogonalise(). Error if a tensor is not as its contract says; `dtype`: of compute
/// precision.
OrthogonalWorkspace check_orthogonalise(const Tensor& values, const RowBlocks& rows, const Tensor& workspace,
                                        DType dtype);

}  // namespace ddptrain
