#pragma once

#include <Eigen/Core>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"
#include "runtime/ops/shapes.h"

namespace ddptrain {

/// Code that all CPU operations share. They are plain C++ and Eigen, in f32 or f64: the readable versions and the
/// oracle of those on GPUs. Results are the same bits for the same number of threads.
class CpuOps {
 public:
  explicit CpuOps(Device& device);

 protected:
  DType dtype() const { return device_.dtype(); }
  int threads() const { return device_.threads(); }
  void progress() const { device_.progress(); }

  /// Calls work(T{}) with T = the scalar of dtype().
  template <class Work>
  void with_scalar(Work&& work) {
    if (dtype() == DType::f64) {
      work(double{});
    } else {
      work(float{});
    }
  }

  /// work(begin, end, thread) over [0, count), one range per thread.
  template <class Work>
  void parallel(std::int64_t count, const Work& work) {
    device_.parallel(count, work);
  }
  /// work(i, thread) for every i of [0, count); messages make progress after every `stride` of thread 0.
  template <class Work>
  void parallel_each(std::int64_t count, std::int64_t stride, Work&& work) {
    parallel(count, [&](std::int64_t begin, std::int64_t end, int thread) {
      for (std::int64_t i = begin; i < end; ++i) {
        work(i, thread);
        if (thread == 0 && (i - begin) % stride == stride - 1) progress();
      }
    });
  }
  /// All terms, in the memory of the first.
  Tensor add_up(const Terms& terms);
  /// Adds the rows of `partial` [threads, columns] in order to `sum` (f32 or f64), or writes it.
  void store_sums(const std::vector<double>& partial, const Tensor& sum, bool accumulate);

  /// Memory for `count` elements per thread, kept between calls; the next call invalidates it.
  template <class T>
  T* scratch(std::int64_t count) {
    return static_cast<T*>(device_.scratch(static_cast<std::size_t>(count * threads()) * sizeof(T)));
  }

  CpuDevice& device_;
};

/// A value of bf16, f32 or f64 as T.
template <class T, class Value>
T to_number(Value value) {
  if constexpr (std::is_same_v<Value, Bf16>) {
    return to_float(value);
  } else {
    return value;
  }
}

/// The tokens of a batch, [count, sequence + 1]: a window's inputs, and one place further on their targets. Throws
/// Error if one is not below `vocabulary`; `what` names the operation.
std::vector<std::uint32_t> batch_tokens(const char* what, const TokenBatch& batch, std::int64_t vocabulary);

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using MatrixView = Eigen::Map<Matrix<T>>;
template <class T>
using ConstMatrixView = Eigen::Map<const Matrix<T>>;
/// Rows that lie further apart than they are long.
template <class T>
using StridedView = Eigen::Map<Matrix<T>, 0, Eigen::OuterStride<>>;
template <class T>
using ConstStridedView = Eigen::Map<const Matrix<T>, 0, Eigen::OuterStride<>>;
template <class T>
using RowArray = Eigen::Array<T, 1, Eigen::Dynamic>;
template <class T>
using RowView = Eigen::Map<RowArray<T>>;
template <class T>
using ConstRowView = Eigen::Map<const RowArray<T>>;

}  // namespace ddptrain
