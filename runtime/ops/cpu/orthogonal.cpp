#include "runtime/ops/optimizers/orthogonal.h"

#include <algorithm>
#include <utility>

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kRows = 64;  // of a product that a thread computes at once

class CpuOrthogonal final : public OrthogonalOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void orthogonalise(const Tensor& values, const RowBlocks& rows, float scale, const Tensor& workspace) override {
    const OrthogonalWorkspace memory = check_orthogonalise(values, rows, workspace, dtype());
    with_scalar([&]<class T>(T) {
      if (values.dtype == DType::bf16) return orthogonalise_as<T, Bf16>(values, rows, scale, memory);
      orthogonalise_as<T, T>(values, rows, scale, memory);
    });
  }

 private:
  template <class T, class G>
  void orthogonalise_as(const Tensor& values, const RowBlocks& rows, float scale, OrthogonalWorkspace memory) {
    load<T, G>(values, rows, memory.x);
    RowView<T> x(memory.x.as<T>(), memory.x.size());
    x /= x.matrix().norm() + static_cast<T>(NewtonSchulz::kEpsilon);
    for (int i = 0; i < NewtonSchulz::kIterations; ++i) {
      iterate<T>(memory);
      std::swap(memory.x, memory.next_x);
    }
    store<T, G>(memory.x, static_cast<T>(scale), values, rows);
  }

  template <class T, class G>
  static void load(const Tensor& values, const RowBlocks& rows, const Tensor& matrix) {
    const std::int64_t columns = values.dim(1);
    for (std::int64_t row = 0; row < matrix.dim(0); ++row) {
      const G* const from = values.as<G>() + rows.at(row) * columns;
      std::transform(from, from + columns, matrix.as<T>() + row * columns, [](G value) { return to_number<T>(value); });
    }
  }

  template <class T, class G>
  static void store(const Tensor& matrix, T scale, const Tensor& values, const RowBlocks& rows) {
    const std::int64_t columns = values.dim(1);
    for (std::int64_t row = 0; row < matrix.dim(0); ++row) {
      const T* const from = matrix.as<T>() + row * columns;
      std::transform(from, from + columns, values.as<G>() + rows.at(row) * columns, [scale](T value) -> G {
        if constexpr (std::is_same_v<G, Bf16>) return to_bf16(static_cast<float>(scale * value));
        return static_cast<G>(scale * value);
      });
    }
  }

  template <class T>
  void iterate(const OrthogonalWorkspace& memory) {
    const auto view = [](const Tensor& tensor) { return MatrixView<T>(tensor.as<T>(), tensor.dim(0), tensor.dim(1)); };
    const MatrixView<T> x = view(memory.x);
    MatrixView<T> next = view(memory.next_x);
    MatrixView<T> gram = view(memory.gram);
    MatrixView<T> polynomial = view(memory.square);
    const bool is_wide = x.rows() <= x.cols();
    if (is_wide) {
      multiply(x, x.transpose(), gram);
    } else {
      multiply(x.transpose(), x, gram);
    }
    multiply(gram, gram, polynomial);
    polynomial = static_cast<T>(NewtonSchulz::kB) * gram + static_cast<T>(NewtonSchulz::kC) * polynomial;
    polynomial.diagonal().array() += static_cast<T>(NewtonSchulz::kA);
    if (is_wide) {
      multiply(polynomial, x, next);
    } else {
      multiply(x, polynomial, next);
    }
  }

  /// to = left * right, in blocks of rows that do not depend on the number of threads.
  template <class Left, class Right, class To>
  void multiply(const Left& left, const Right& right, To& to) {
    parallel_each((to.rows() + kRows - 1) / kRows, 1, [&](std::int64_t block, int) {
      const std::int64_t begin = block * kRows;
      const std::int64_t count = std::min<std::int64_t>(kRows, to.rows() - begin);
      to.middleRows(begin, count).noalias() = left.middleRows(begin, count) * right;
    });
  }
};

}  // namespace

std::unique_ptr<OrthogonalOps> OrthogonalOps::on_cpu(Device& device) { return std::make_unique<CpuOrthogonal>(device); }

}  // namespace ddptrain
