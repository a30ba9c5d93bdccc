#include "runtime/ops/optimizers/orthogonal.h"

#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/ops/shapes.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kAlignment = 64;  // elements

std::int64_t aligned(std::int64_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::int64_t OrthogonalOps::workspace_size(std::int64_t rows, std::int64_t columns) {
  const std::int64_t side = std::min(rows, columns);
  return 2 * aligned(rows * columns) + 2 * aligned(side * side);
}

OrthogonalWorkspace check_orthogonalise(const Tensor& values, const RowBlocks& blocks, const Tensor& workspace,
                                        DType dtype) {
  DDP_CHECK(values.shape.size() == 2 && values.size() > 0, "orthogonalise: a matrix must have rows and columns");
  const DType wide = dtype == DType::f64 ? DType::f64 : DType::f32;
  expect_tensor("orthogonalise", "values", values, values.dtype == DType::bf16 ? DType::bf16 : wide, values.shape);
  const bool fits = blocks.run > 0 && blocks.first >= 0 && blocks.first + blocks.run <= blocks.stride;
  DDP_CHECK(fits && values.dim(0) % blocks.stride == 0, "orthogonalise: rows {} + {} of each {} in {}", blocks.first,
            blocks.run, blocks.stride, values.dim(0));
  const std::int64_t rows = blocks.rows(values.dim(0));
  const std::int64_t columns = values.dim(1);
  DDP_CHECK(workspace.size() >= OrthogonalOps::workspace_size(rows, columns),
            "orthogonalise: a workspace of {} elements for {} x {}", workspace.size(), rows, columns);
  expect_tensor("orthogonalise", "workspace", workspace, dtype, workspace.shape);
  std::int64_t begin = 0;
  const auto take = [&](std::int64_t height, std::int64_t width) {
    Tensor tensor = workspace.stretch(begin, height * width);
    tensor.shape = {height, width};
    begin += aligned(height * width);
    return tensor;
  };
  const std::int64_t side = std::min(rows, columns);
  OrthogonalWorkspace result;
  result.x = take(rows, columns);
  result.next_x = take(rows, columns);
  result.gram = take(side, side);
  result.square = take(side, side);
  return result;
}

}  // namespace ddptrain
