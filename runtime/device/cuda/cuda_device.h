#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/device.h"
#include "runtime/ops/linear_dims.h"

namespace ddptrain {

namespace cuda {
class AttentionPlans;
class ConvPlans;
class Fp8Scales;
struct Fp8Matrix;
class MatmulPlans;
class Tuner;
struct Gemm;
struct GemmTensors;
}  // namespace cuda

/// One GPU. The thread that makes it is the one that uses it. cuBLASLt and cuDNN are
/// initialised by the first operation that needs them. An operation of a new size may allocate; so everything that is
/// captured in a graph must have run once before.
class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceOptions options, int device);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  double peak_flops() const override;
  /// For kernels whose blocks stay until the end: what communication leaves.
  int compute_multiprocessors() const { return multiprocessors_ - options().communication_multiprocessors; }

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  const void* share_host_memory(const void* host, std::size_t bytes) override;
  Buffer allocate_pinned(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void zero(void* device, std::size_t bytes, Stream stream) override;
  void convert(const Tensor& src, const Tensor& dst, Stream stream) override;

  Stream compute_stream() override { return {compute_.get()}; }
  Stream communication_stream() override { return {communication_.get()}; }
  void wait_for(Stream later, Stream earlier) override;
  void synchronize() override;
  std::unique_ptr<Event> record(Stream stream) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override;
  std::unique_ptr<Timeline> make_timeline() override;

  Fp8Scale* make_scale(DType format) override;
  void renew_scales() override;
  void forget_magnitudes() override;
  void to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate) override;

  void advance(StepState* state, std::uint32_t steps, Stream stream) override;
  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) override;
  std::size_t inbox_bytes(OptimizerKind kind, const UpdateSlice& slice, int ranks) const override;
  void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                      StepRef step, Stream stream) override;
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

  std::unique_ptr<CnnKernels> make_cnn_kernels(const CnnShape&, std::int64_t max_batch) override;

  cuda::MatmulPlans& matmul();

 private:
  cuda::ConvPlans& conv();
  cuda::AttentionPlans& attention_plans();
  /// As expect_tensor, for the gradient of a parameter: dtype() or f32.
  void expect_gradient(const Tensor& gradient, const char* what, const Shape& shape) const;
  /// A tensor in FP8 that is about to be written.
  cuda::Fp8Matrix output_fp8(const Tensor& y);
  /// The operations of these names on tensors in FP8.
  void linear_fp8(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y);
  void linear_backward_fp8(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                           const Tensor& dweight, bool accumulate);
  void gelu_fp8(const Tensor& pre, const Tensor& y);
  void linear_gelu_backward_fp8(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                const Tensor& dbias, bool accumulate);
  /// dbias (+)= sums over the rows of dy [n, columns].
  void sum_columns(const Tensor& dy, const Tensor& dbias, bool accumulate);
  /// In place dpre [n, hidden] *= gelu'(pre); dbias, where it has data, (+)= the sums over its rows.
  void gelu_backward(const Tensor& pre, const Tensor& dpre, const Tensor& dbias, bool accumulate);
  /// linear_gelu_backward as a product whose epilogue sums up; false where there is none.
  bool linear_gelu_backward_fused(const cuda::Gemm& gemm, const cuda::GemmTensors& tensors, const Tensor& dbias,
                                  bool accumulate);

  std::string name_;
  int multiprocessors_ = 0;
  cuda::StreamHandle compute_;
  cuda::StreamHandle communication_;
  cuda::EventHandle order_;
  std::vector<cuda::RegisteredMemory> shared_;  ///< By share_host_memory.
  cuda::Scratch scratch_;                       ///< Of operations on the compute stream.
  cuda::Scratch compute_norm_scratch_;          ///< Of sum_of_squares, for each stream it may run on.
  cuda::Scratch communication_norm_scratch_;
  std::unique_ptr<cuda::Fp8Scales> fp8_scales_;
  std::unique_ptr<cuda::Tuner> tuner_;
  std::unique_ptr<cuda::MatmulPlans> matmul_;
  std::unique_ptr<cuda::ConvPlans> conv_;
  std::unique_ptr<cuda::AttentionPlans> attention_;
};

}  // namespace ddptrain
