#pragma once

#include <Eigen/Core>
#include <type_traits>
#include <utility>
#include <vector>

#include "runtime/device/cpu/thread_pool.h"
#include "runtime/device/device.h"
#include "runtime/ops/expect_tensor.h"

namespace ddptrain {

/// The operations in plain C++ and Eigen, f32 or f64: the readable twin and the oracle of the CUDA device. Results are
/// the same bits for the same number of threads.
class CpuDevice : public Device {
 public:
  explicit CpuDevice(DeviceOptions options);  ///< As make_cpu_device() has checked them.

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override;

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  const void* share_host_memory(const void* host, std::size_t) override { return host; }
  Buffer allocate_pinned(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void zero(void* device, std::size_t bytes, Stream stream) override;
  void convert(const Tensor& src, const Tensor& dst, Stream stream) override;

  Stream compute_stream() override { return {}; }
  Stream communication_stream() override { return {}; }
  void wait_for(Stream, Stream) override {}
  void synchronize() override {}
  std::unique_ptr<Event> record(Stream stream) override;
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }
  std::unique_ptr<Timeline> make_timeline() override;

  void advance(StepState* state, std::uint32_t steps, Stream stream) override;
  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override;
  void sum_of_squares(const Tensor& values, float* sum, Stream stream) override;
  void clip_scale(const Tensor& squares, float max_norm, float* scale, Stream stream) override;

  void gather_images(const ImageBatch& batch, const Tensor& out) override;
  void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       bool accumulate) override;
  void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                          bool accumulate) override;
  void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                              const Tensor& winner) override;
  void bias_relu_pool_dropout_backward(const Tensor& dout, const Tensor& winner, const Dropout& dropout,
                                       const Tensor& dx, const Tensor& dbias, bool accumulate) override;
  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override;
  void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dbias, bool accumulate) override;
  void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) override;
  void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale, const Tensor& dlogits,
                             MetricSums* sums) override;

  void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                    const Dropout& dropout, const Tensor& out) override;
  void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& dout, const Tensor& head,
                             const Tensor& dtoken, const Tensor& dposition, bool accumulate) override;
  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                  const Tensor& statistics) override;
  void add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout, const Tensor& weight,
                      const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                      const Tensor& statistics) override;
  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Tensor& dy,
                           const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor& dx_sums, bool accumulate) override;
  void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) override;
  void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                   const Tensor& y) override;
  void gelu(const Tensor& pre, const Tensor& y) override;
  void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                            const Tensor& dbias, bool accumulate) override;
  void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) override;
  void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& dout, const Tensor& dqkv) override;
  void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                           std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                           MetricSums* sums) override;

 private:
  template <class T, class G>
  void update_slice(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step);

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
  void parallel(std::int64_t count, const ThreadPool::Work& work) { pool_.run(count, work); }
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
  /// dbias (+)= sums over the rows of dy [n, columns].
  void sum_columns(const Tensor& dy, const Tensor& dbias, bool accumulate);
  /// Adds the rows of `partial` [threads, columns] in order to `sum` (f32 or f64), or writes it.
  void store_sums(const std::vector<double>& partial, const Tensor& sum, bool accumulate);

  /// Memory for `count` elements per thread, kept between calls; the next call invalidates it.
  template <class T>
  T* scratch(std::int64_t count) {
    const auto bytes = static_cast<std::size_t>(count * threads()) * sizeof(T);
    if (scratch_.bytes() < bytes) scratch_ = allocate(bytes);
    return static_cast<T*>(scratch_.data());
  }
  int threads() const { return pool_.size(); }

  ThreadPool pool_;
  Buffer scratch_;
};

template <class T>
using Matrix = Eigen::Matrix<T, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
template <class T>
using MatrixView = Eigen::Map<Matrix<T>>;
template <class T>
using ConstMatrixView = Eigen::Map<const Matrix<T>>;
/// Of rows that lie further apart than they are long.
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
