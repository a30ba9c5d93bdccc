#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/buffer.h"

/// What the runtime trains: the interface that every model implements.

namespace ddptrain {

/// How a parameter starts: values that are read where `read` is set, else values drawn from Philox with the run's seed,
/// the parameter's place in the list and the element, so that they depend on nothing else.
struct InitialValue {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  float scale = 0.0f;  ///< The constant; the bound of [-scale, scale]; the standard deviation.
  /// Pretrained values, as many as the parameter has or more. Called on rank 0 alone, once, and kept by nobody.
  std::function<std::vector<float>()> read = nullptr;

  static InitialValue constant(float value) { return {Kind::constant, value}; }
  static InitialValue uniform(float bound) { return {Kind::uniform, bound}; }
  static InitialValue normal(float deviation) { return {Kind::normal, deviation}; }
};

struct ParameterSpec {
  std::string name;
  Shape shape;
  InitialValue initial = {};
  bool decays = true;  ///< Weight decay applies (not to biases).
  /// Memory behind the parameter is kept, zero, for its leading dimension to be read as this many rows; 0: none.
  std::int64_t padded_rows = 0;

  std::int64_t size() const { return element_count(shape); }
  std::int64_t padded_size() const;  ///< Elements that it takes in memory.
};

/// State of a model that is not trained, such as running statistics. Each rank has its own.
struct BufferSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  ///< f32 or f64
  float initial = 0.0f;      ///< Of every element.
};

/// What bind() gives a model; each in the order of its specs.
struct ModelTensors {
  std::vector<Tensor> weights;    ///< In compute precision.
  std::vector<Tensor> gradients;  ///< Of the type of weights; f32 beside bf16 weights where the model takes them.
  std::vector<Tensor> buffers = {};
};

/// What a layer multiplies for one sample, in FLOP.
struct LayerWork {
  std::string name;
  double forward = 0.0;
  double backward = 0.0;  ///< With what it recomputes.
  /// The same without what a causal mask hides.
  double forward_causal = forward;
  double backward_causal = backward;
};

/// Of one sample of training.
struct ModelWork {
  std::vector<LayerWork> layers;    ///< In the order of forward.
  std::vector<double> ready_after;  ///< Per parameter, FLOP of the backward pass before its gradient is complete.

  double flop() const;  ///< Of all layers, forward and backward.
};

/// A model for one rank, and the data that it was bound to when it was made. It owns its activations; parameters,
/// gradients and buffers belong to the runtime.
class Model {
 public:
  /// Parameter i has its final gradient of this micro-step, and its weight is not read again in this step, as far as
  /// the compute stream is concerned.
  using Ready = std::function<void(std::size_t)>;
  /// What forward() queues from now on reads the weight of parameter i, whose update may be under way until then.
  using Reads = std::function<void(std::size_t)>;

  virtual ~Model() = default;

  /// In the order in which backward completes them (the arena's layout).
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// The tensors outlive the model. Error where they do not fit the specs, or the model does not take gradients of
  /// their type.
  virtual void bind(const ModelTensors& tensors) = 0;

  /// The values of buffers have been replaced, as when a run is resumed.
  virtual void restored() {}

  /// Forward pass over training samples, with dropout; adds the slice's loss and hits to *sums, by the end of
  /// backward() at the latest. May begin with the backward pass. `gradient_scale`: factor of the loss of every
  /// prediction in the gradient, 1 / (predictions of the whole step on all ranks); 0: nothing of the backward pass is
  /// begun, and none may follow. Every parameter is reported to `reads`, the later the better, and the tensors of
  /// gradients, which may be on their way to other ranks until then, are left alone.
  virtual void forward(const Slice& slice, float gradient_scale, MetricSums* sums, const Reads& reads) = 0;
  /// Backward pass of the last forward; every parameter is reported exactly once.
  virtual void backward(bool accumulate, const Ready& ready) = 0;
  /// Forward pass over test samples, without dropout and without a trace in training.
  virtual void evaluate(const Slice& slice, MetricSums* sums) = 0;

  virtual double flops_per_sample() const = 0;  ///< Forward and backward of training, as MFU counts them.
  /// By default one layer, with a third of flops_per_sample() forward, whose gradients are complete at the end.
  virtual ModelWork work() const;
  virtual std::vector<MemoryUse> memory() const { return {}; }  ///< What it holds: activations, data.
  /// What it predicts and throughput counts, and how many of them a sample has: an image has one, a window many tokens.
  virtual const char* unit() const = 0;
  virtual std::int64_t predictions_per_sample() const { return 1; }
};

/// For bind(): Error where there are not as many weights and gradients as `specs` says, or gradients are of another
/// type than weights and `takes_f32_gradients` does not allow for it.
void check_fits(const char* model, const std::vector<ParameterSpec>& specs, const ModelTensors& tensors,
                bool takes_f32_gradients);

}  // namespace ddptrain
