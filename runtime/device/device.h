#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/buffer.h"
#include "runtime/device/peer_inboxes.h"
#include "runtime/device/timeline.h"
#include "runtime/ops/optimizer.h"
#include "runtime/ops/token_batch.h"

namespace ddptrain {

class CnnKernels;
struct CnnShape;

enum class DeviceKind : std::uint8_t { cpu, cuda };
enum class MemoryFormat : std::uint8_t { nhwc, nchw };

/// View of a queue of device work (a CUDA stream); on the CPU work runs when it is queued and the handle is null.
struct Stream {
  void* handle = nullptr;
};

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;  ///< Whether the device has passed it. Does not wait. Error where work before it has failed.
};

/// A recorded sequence of device work that can be launched again and again. Launching does not wait.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;  ///< On the compute stream.
};

/// Sums over the predictions made since they were last zeroed: one per image, one per token.
struct MetricSums {
  double loss = 0.0;  ///< Sum of the predictions' losses (natural logarithm).
  std::uint64_t correct = 0;
  std::uint64_t samples = 0;
};

struct DeviceOptions {
  Precision precision = Precision::fp32;
  MemoryFormat memory_format = MemoryFormat::nhwc;  ///< Of cuDNN's convolutions; fused kernels have their own.
  bool fused = true;  ///< Use fused kernels where there are some for the model and precision.
  int threads = 1;    ///< CPU only.
  /// Multiprocessors that kernels which fill the GPU leave to collectives, so that these run beside them.
  int communication_multiprocessors = 0;
  /// GPUs: the fastest algorithm for each matrix product is found by timing a few when it is first seen. Other runs may
  /// choose otherwise and round differently; without, the same run gives the same bits.
  bool tune = false;
  /// GPUs, with bf16: models that can have their linear layers multiply in FP8, see Device::fits_fp8.
  bool fp8 = false;
};

/// One device, its streams, and the operations that models are made of. Not thread-safe.
///
/// Contract of every operation: tensors are row-major views on this device with the element type
/// compute_dtype(precision()) unless said otherwise; shapes are checked and a mismatch throws Error; work is queued on
/// compute_stream() (CPU: done on return) and is deterministic. Gradients of parameters are written (`accumulate`
/// false) or added to what is there (true). Image tensors are [batch, height, width, channels]; convolution weights
/// [out, kernel, kernel, in]; linear weights [out, in].
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  const DeviceOptions& options() const { return options_; }
  Precision precision() const { return options_.precision; }
  DType dtype() const { return compute_dtype(options_.precision); }
  /// Peak rate of dense matrix products at precision(), FLOP/s, from the data sheet; 0 where unknown.
  virtual double peak_flops() const { return 0.0; }

  // --- memory -------------------------------------------------------------------------------------------------
  virtual Buffer allocate(std::size_t bytes) = 0;  ///< Zeroed.
  Buffer allocate(DType dtype, const Shape& shape) {
    return allocate(static_cast<std::size_t>(element_count(shape)) * size_of(dtype));
  }
  /// Both wait for the work queued before and return when done.
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  /// Whether data sets are copied to it: its memory is not the host's.
  virtual bool has_own_memory() const { return kind() != DeviceKind::cpu; }
  /// An address at which operations read host memory without a copy, for as long as the device and that memory live;
  /// null where the device cannot.
  virtual const void* share_host_memory(const void* host, std::size_t bytes) = 0;
  /// Host memory (zeroed) to and from which copy() runs at full rate and beside other work.
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;
  /// Queued on `stream`; either side may be pinned host memory.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void zero(void* device, std::size_t bytes, Stream stream) = 0;
  /// dst = src with conversion between f64, f32 and bf16 (round to nearest even).
  virtual void convert(const Tensor& src, const Tensor& dst, Stream stream) = 0;

  // --- order --------------------------------------------------------------------------------------------------
  virtual Stream compute_stream() = 0;
  virtual Stream communication_stream() = 0;  ///< Higher priority than compute.
  /// Work queued on `later` from now on starts after everything queued on `earlier` so far. The host does not wait.
  virtual void wait_for(Stream later, Stream earlier) = 0;
  /// The end of what is queued on `stream` so far.
  virtual std::unique_ptr<Event> record(Stream stream) = 0;
  virtual void synchronize() = 0;  ///< The host waits for all streams; reports errors of earlier work.
  /// Records what `work` queues on compute_stream() (and streams that wait for it and are joined back) without running
  /// it. Null where the device has no graphs.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& work) = 0;
  virtual std::unique_ptr<Timeline> make_timeline() = 0;
  /// Spans of work queued from now on are noted in `timeline`; null: nowhere.
  void record_into(Timeline* timeline) { timeline_ = timeline; }
  Timeline* timeline() const { return timeline_; }
  /// Called by long operations of the CPU device now and then, so that messages make progress.
  void set_progress(std::function<void()> progress) { progress_ = std::move(progress); }

  // --- step and optimizer -------------------------------------------------------------------------------------
  virtual void advance(StepState* state, std::uint32_t steps, Stream stream) = 0;  ///< state->step += steps
  virtual void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream stream) = 0;
  /// Bytes of memory, zeroed, that sum_and_update() of this slice needs on each of `ranks` ranks; 0 where there is no
  /// sum_and_update(): on CPUs, for lamb, for more than PeerInboxes::kMaxRanks ranks and for large slices.
  virtual std::size_t inbox_bytes(OptimizerKind, const UpdateSlice&, int) const { return 0; }
  /// update() by the sum over ranks of slice.gradients, rounded once to their type: the same bits on all ranks. The
  /// gradients stay as they are. Collective: the ranks' kernels wait for each other on their GPUs.
  virtual void sum_and_update(const OptimizerSettings& settings, const UpdateSlice& slice, const PeerInboxes& peers,
                              StepRef step, Stream stream);
  /// *sum (f32) = sum of squares of `values`, of bf16 or the type of master weights.
  virtual void sum_of_squares(const Tensor& values, float* sum, Stream stream) = 0;
  /// *scale = min(1, max_norm / (norm + 1e-6)), norm = square root of the sum of all `squares` (f32).
  virtual void clip_scale(const Tensor& squares, float max_norm, float* scale, Stream stream) = 0;

  // --- FP8 ----------------------------------------------------------------------------------------------------
  // The matrices that a linear layer multiplies may be in FP8, all of them: x and weight in e4m3, dy in e5m2. to_fp8
  // makes them of others. Operations whose output is said to be one write it themselves where the caller wants it.

  /// Whether such a matrix may be in FP8: where options().fp8 is set, and both are multiples of 16.
  bool fits_fp8(std::int64_t rows, std::int64_t columns) const {
    return options_.fp8 && rows % 16 == 0 && columns % 16 == 0;
  }
  /// For one tensor of a model, e4m3 or e5m2: it is scaled such that twice the largest magnitude written with this
  /// scale before the last renew_scales() is the largest that FP8 holds ("delayed scaling"; what is beyond is cut off).
  /// When first written with, it goes by that tensor. Of the device, and as long-lived. Error without options().fp8.
  virtual Fp8Scale* make_scale(DType format);
  /// From now on all scales go by what was written with them since the last call, if anything was. Tensors in FP8 are
  /// not read beyond it.
  virtual void renew_scales() {}
  /// What was written since the last renew_scales() has no part in the next (an evaluation between steps).
  virtual void forget_magnitudes() {}
  /// y [rows, columns] of FP8 = x. Where `sums` [columns] has data: sums (+)= the sums over the rows of x, as in
  /// linear_backward's dbias.
  virtual void to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate);

  // --- operations ---------------------------------------------------------------------------------------------
  /// out [count, height, width, 1] = pixels of the batch / 255.
  virtual void gather_images(const ImageBatch& batch, const Tensor& out) = 0;

  /// y = x * w (valid, stride 1) + bias, then ReLU; bias and ReLU only where `bias` has data.
  virtual void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  /// dweight from x and dy; dx where it has data.
  virtual void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                               const Tensor& dweight, bool accumulate) = 0;
  /// In place dy = y > 0 ? dy * scale : 0, and dbias = column sums over the last dimension. y = output of bias + ReLU
  /// (and dropout, which `scale` undoes).
  virtual void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                                  bool accumulate) = 0;
  /// out [n, h/2, w/2, c] = dropout(max-pool 2x2(ReLU(x + bias))); features are numbered over [h/2, w/2, c].
  /// winner (u8, shape of out): position (2 dy + dx) of a largest element, 4 where the output is 0.
  virtual void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                                      const Tensor& winner) = 0;
  /// dx (every element is written) and dbias.
  virtual void bias_relu_pool_dropout_backward(const Tensor& dout, const Tensor& winner, const Dropout& dropout,
                                               const Tensor& dx, const Tensor& dbias, bool accumulate) = 0;

  /// y [n, out] = x [n, in] weight^T + bias (where it has data). x and weight may be e4m3.
  virtual void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) = 0;
  /// dx, dweight and dbias, each where it has data; x may be without where dweight is. dy may be e5m2; x and weight
  /// then are e4m3, and dbias has no data (to_fp8 gives it).
  virtual void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                               const Tensor& dweight, const Tensor& dbias, bool accumulate) = 0;
  /// In place x [n, features] = dropout(ReLU(x + bias)).
  virtual void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) = 0;

  /// Adds the batch's loss, hits and count to *sums (on the device). Where `dlogits` has data:
  /// dlogits = (softmax(logits) - onehot(label)) * gradient_scale; it may be the same memory as logits.
  virtual void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale,
                                     const Tensor& dlogits, MetricSums* sums) = 0;

  // --- operations of transformers -----------------------------------------------------------------------------
  // Activations are [batch, sequence, width] (or flattened to rows, where it makes no difference). `statistics` are f32
  // (f64 for fp64). Gradients of parameters may be f32 where weights are bf16.

  /// out [batch, sequence, width] = dropout(token_embedding [vocabulary, width] + position_embedding [>= sequence,
  /// width]). Dropout counts features over [sequence, width]; a sample is a window.
  virtual void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                            const Dropout& dropout, const Tensor& out) = 0;
  /// dtoken (+)= head + the sum of dout over the places of each token; dposition (+)= the sum of dout over the batch.
  /// `head` [>= vocabulary, width], f32 (f64 for fp64): what the tied output layer contributes.
  virtual void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& dout,
                                     const Tensor& head, const Tensor& dtoken, const Tensor& dposition,
                                     bool accumulate) = 0;

  /// y = (x - mean) / sqrt(variance + epsilon) * weight + bias over the last dimension. statistics [rows, 2]: mean and
  /// 1 / sqrt(variance + epsilon). y may be e4m3.
  virtual void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                          const Tensor& statistics) = 0;
  /// sum = residual + dropout(branch); y = layer_norm(sum). Dropout as in embed_tokens. `sum` is memory of its own.
  virtual void add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout,
                              const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& sum,
                              const Tensor& y, const Tensor& statistics) = 0;
  /// dx = (dresidual where it has data) + the gradient through layer_norm; dx may be the memory of dresidual or dy.
  /// Where dx_sums [width] has data, it gets the sums of dx over the rows: the gradient of the bias of a linear layer
  /// whose output was added to x. It has the type of dweight and dbias.
  virtual void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Tensor& dy,
                                   const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                   const Tensor& dbias, const Tensor& dx_sums, bool accumulate) = 0;
  /// y = x * mask / (1 - rate): dropout of an activation [batch, ...], or of its gradient. y may be x.
  virtual void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) = 0;

  /// pre [n, out] = x weight^T + bias; y = gelu(pre), the tanh form (Hendrycks and Gimpel, arXiv:1606.08415). x and
  /// weight may be e4m3, and so may y.
  virtual void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                           const Tensor& y) = 0;
  virtual void gelu(const Tensor& pre, const Tensor& y) = 0;  ///< As linear_gelu's, bit by bit.
  /// dpre [n, hidden] = (dy [n, out] weight [out, hidden]) * gelu'(pre): the data gradient of a linear layer whose
  /// input was gelu(pre). dbias [hidden], where it has data, gets the sums of dpre over the rows: the gradient of
  /// linear_gelu's bias. dy and dpre may be e5m2, and weight e4m3, all of them.
  virtual void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                    const Tensor& dbias, bool accumulate) = 0;

  /// Causal self-attention: out [batch, sequence, width] = softmax(q k^T / sqrt(width / heads)) v per head, with
  /// qkv [batch, sequence, 3 width] = q | k | v, each [heads, width / heads]. statistics [batch, heads, sequence]: for
  /// the backward pass alone.
  virtual void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) = 0;
  virtual void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                                  const Tensor& dout, const Tensor& dqkv) = 0;

  /// Rows first_row, first_row + 1, ... of the batch's [windows * sequence] predictions, one per row of logits
  /// [rows, padded vocabulary], of which the first `vocabulary` columns count. Adds loss, hits and count of these
  /// tokens to *sums. Where dlogits has data (it may be logits): (softmax - onehot(target)) * gradient_scale, 0 in the
  /// padding.
  virtual void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                                   std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                                   MetricSums* sums) = 0;

  /// Fused kernels for the whole CNN, or null where this device, precision or shape has none.
  virtual std::unique_ptr<CnnKernels> make_cnn_kernels(const CnnShape&, std::int64_t /*max_batch*/);

 protected:
  explicit Device(DeviceOptions options) : options_(options) {}
  void progress() const {
    if (progress_) progress_();
  }

 private:
  DeviceOptions options_;
  std::function<void()> progress_;
  Timeline* timeline_ = nullptr;
};

std::unique_ptr<Device> make_cpu_device(DeviceOptions options);
/// Takes address space for what is allocated and computes nothing: for descriptions of runs on a device of `kind`,
/// which need not be there.
std::unique_ptr<Device> make_paper_device(DeviceOptions options, DeviceKind kind);
/// `device`: index among the visible GPUs. Throws UsageError in a build without CUDA.
std::unique_ptr<Device> make_cuda_device(DeviceOptions options, int device);
/// Starts CUDA on the first visible GPU, which takes a while; errors are left to those who use it. From any thread.
void start_cuda();
int cuda_device_count();  ///< 0 in a build without CUDA or on a machine without a GPU.
/// Such as 0000:1b:00.0; empty in a build without CUDA.
std::string cuda_pci_bus_id(int device);
/// Whether a GPU can read and write another one's memory directly; false in a build without CUDA.
bool cuda_can_access_peer(int device, int peer);
bool built_with_cuda();
std::string cuda_version();  ///< Of the runtime library; needs no GPU. Empty in a build without CUDA.
std::string cudnn_version();

}  // namespace ddptrain
