#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/device/buffer.h"
#include "runtime/train/split.h"

/// The interface that every model implements, so that the runtime can train it.

namespace ddptrain {

class TensorGroup;

/// The initial values of a parameter. If `read` is set, it gives them. Otherwise they are drawn by Philox from the
/// run's seed, the parameter's identity and the element's index, and depend on nothing else.
struct InitialValue {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  float scale = 0.0f;  ///< The constant, the bound of [-scale, scale], or the standard deviation.
  /// Returns pretrained values, at least as many as the parameter has. Called once, on rank 0 of each group of
  /// replicas.
  std::function<std::vector<float>()> read = nullptr;

  static InitialValue constant(float value) { return {Kind::constant, value}; }
  static InitialValue uniform(float bound) { return {Kind::uniform, bound}; }
  static InitialValue normal(float deviation) { return {Kind::normal, deviation}; }
};

struct ParameterSpec {
  std::string name;
  Shape shape;  ///< The shape of this rank's slice.
  InitialValue initial = {};
  bool decays = true;  ///< Weight decay applies. False for biases and norms.
  /// Zeros follow the parameter in memory, so that it can be read with this many rows. 0: no padding.
  std::int64_t padded_rows = 0;
  /// This rank's slice, if ranks split the parameter. `initial` describes the whole parameter.
  std::optional<Split> split = {};
  /// Another rank of the same replica has the same values. That rank counts and stores them.
  bool is_copy = false;
  /// For optimizers that update matrices as a whole: the rows of each matrix in the parameter. Merged projections, such
  /// as queries, keys and values, are several, one below the other. If the rows of all are fewer than the parameter's,
  /// they repeat: matrices that are interleaved. Empty if it is no matrix of a hidden layer: embeddings, first and last
  /// layers, biases and norms.
  std::vector<std::int64_t> matrix_rows = {};

  std::int64_t size() const { return element_count(shape); }
  Split slice() const { return split.value_or(Split::none(shape)); }
  std::int64_t padded_size() const;  ///< Elements in memory.
  /// The key of the parameter's random numbers: the low 32 bits of the XXH3-128 of its name. So they do not depend on
  /// the other parameters, or on which parameters this rank has.
  std::uint32_t identity() const;
};

std::int64_t element_count(const std::vector<ParameterSpec>& specs);  ///< The sum over all parameters, without padding.

/// State of a model that is not trained, such as running statistics. Ranks have different values.
struct BufferSpec {
  std::string name;
  Shape shape;
  DType dtype = DType::f32;  ///< f32 or f64
  float initial = 0.0f;      ///< Initial value of every element.
};

/// The memory that bind() gives to a model. Each list has the order of its specs.
struct ModelTensors {
  std::vector<Tensor> weights;    ///< In compute precision.
  std::vector<Tensor> gradients;  ///< The type of the weights. If the model allows it, also f32 with bf16 weights.
  std::vector<Tensor> buffers = {};
  TensorGroup* group = nullptr;  ///< The ranks that split parameters; null: none are split.
};

/// FLOP of a layer's matrix multiplications for one sample.
struct LayerWork {
  std::string name;
  double forward = 0.0;
  double backward = 0.0;  ///< Includes recomputation.
  /// The same without the positions that a causal mask hides.
  double forward_causal = forward;
  double backward_causal = backward;
};

/// FLOP and readiness of gradients for one training sample.
struct ModelWork {
  std::vector<LayerWork> layers;    ///< In the order of forward.
  std::vector<double> ready_after;  ///< Per parameter: FLOP of the backward pass until its gradient is complete.

  double flop() const;  ///< The sum over all layers, forward and backward.
};

/// Messages of one kind that a rank sends in a step.
struct Sent {
  /// data (gradients), gather (weights that ZeRO divides), directions (of matrices: see MatrixDirections), pipeline or
  /// tensor
  std::string axis;
  std::string when;        ///< forward, backward, update, or use (before each pass of a unit)
  std::int64_t times = 0;  ///< Number of collectives, or of messages to another stage.
  std::int64_t bytes = 0;  ///< Bytes of all of them together, if collectives use a ring.
};

/// A part of a model that runs as a whole, such as a transformer block. Its parameters are gathered, used and reduced
/// together. Each parameter belongs to exactly one unit.
struct Unit {
  std::string name;
  std::size_t first = 0;                     ///< Index of its first parameter in Model::parameters().
  std::size_t count = 0;                     ///< Number of its parameters, which are consecutive.
  std::vector<std::size_t> also_reads = {};  ///< Parameters of other units that it reads (tied weights).
};

/// The samples of one forward and backward pass.
struct MicroBatch {
  Slice slice;
  MetricSums* sums = nullptr;  ///< The pass adds loss and correct predictions to it.
  bool training = true;        ///< Training samples, with dropout. Otherwise test samples, which leave no state behind.
  /// Weight of each prediction's loss in the gradient: 1 / (predictions of the whole step on all ranks). 0: no backward
  /// pass follows, and the model must not begin one.
  float gradient_scale = 0.0f;
};

/// The tensors that two neighbouring pipeline stages exchange. Both stages have the same number of tensors with the
/// same sizes. A tensor without data is not exchanged.
struct StageBoundary {
  std::vector<Tensor> activations;  ///< Sent to the later stage in each pass.
  std::vector<Tensor> gradients;    ///< Sent to the earlier stage in each pass.
  Tensor tied_weight;    ///< Sent to the later stages once in each step, because a later unit reads the weight, too.
  Tensor tied_gradient;  ///< That unit's share of the weight's gradient, sent to the earlier stages in each pass.
};

/// The model of one rank, with its data set. The model owns its activations. The runtime owns parameters, gradients and
/// buffers, and runs the model unit by unit.
class Model {
 public:
  /// Called when parameter i's gradient of this micro-batch is complete in the order of the compute stream. The pass
  /// does not read the parameter's weight after that.
  using Ready = std::function<void(std::size_t)>;

  virtual ~Model() = default;

  /// The parameters, which the arena stores in this order. A bucket is reduced when its last gradient is complete, so
  /// the order should be about the one in which the backward pass completes gradients.
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  /// The units in the order of the forward pass. The default is one unit with all parameters.
  virtual std::vector<Unit> units() const { return {{"model", 0, parameters().size()}}; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// Gives the model its memory, which outlives the model. Error if a tensor does not fit its spec, or if the model
  /// does not support the type of the gradients.
  virtual void bind(const ModelTensors& tensors) = 0;

  /// Called after the values of buffers have been replaced, for example by a resume.
  virtual void restored() {}

  /// Sets the micro-batch of the passes that follow. Reads no weights.
  virtual void begin(const MicroBatch& batch) = 0;
  /// Forward pass of a unit. Called for every unit, in order. The last unit may begin the backward pass, but must not
  /// write gradients of parameters: they may still be on their way to other ranks. The loss is in the sums at the end
  /// of the backward pass or before.
  virtual void forward(std::size_t unit) = 0;
  /// Backward pass of a unit. Called for every unit, in reverse order. Calls `ready` for each of the unit's parameters
  /// exactly once, in this call or in the next unit's. It may also write gradients of the preceding unit.
  virtual void backward(std::size_t unit, bool accumulate, const Ready& ready) = 0;

  /// The tensors that this stage exchanges with the previous stage: forward() of the first unit reads the activations,
  /// and backward() of the first unit writes the gradients. Empty for the first stage. Valid until the next pass.
  virtual StageBoundary previous_boundary() { return {}; }
  /// The tensors that this stage exchanges with the next stage, for its last unit.
  virtual StageBoundary next_boundary() { return {}; }
  /// A second instance, for a pass that runs while this model is between forward and backward. It is bound to the same
  /// tensors, and both share the state that lasts over passes. Null if the model does not support pipelines.
  virtual std::unique_ptr<Model> sibling() { return nullptr; }

  /// The parameters of all stages, in the order of one rank that has them all. parameters() are consecutive ones.
  virtual std::vector<ParameterSpec> parameters_of_all_stages() const { return parameters(); }
  virtual double flops_per_sample() const = 0;  ///< FLOP of forward and backward, as MFU counts them.
  /// The default is one layer. A third of flops_per_sample() is forward, and all gradients are complete at the end.
  virtual ModelWork work() const;
  /// The messages to other stages and tensor ranks in `passes` passes of the largest batch. Messages of a recomputed
  /// forward pass count as forward.
  virtual std::vector<Sent> sends(std::int64_t /*passes*/) const { return {}; }
  virtual std::vector<MemoryUse> memory() const { return {}; }  ///< The memory that it owns: activations and data.
  /// The unit of throughput, such as images or tokens, and how many of them a sample has. Each has one prediction.
  virtual const char* sample_unit() const = 0;
  virtual std::int64_t predictions_per_sample() const { return 1; }
};

/// begin() and the forward pass of all units.
void run_forward(Model& model, const MicroBatch& batch);
/// The backward pass of all units.
void run_backward(Model& model, bool accumulate, const Model::Ready& ready);

/// Error if a parameter is in no unit or in several.
void check_units(const std::vector<Unit>& units, std::size_t parameters);

/// Error if two parameters have the same identity: they would get the same random numbers.
void check_identities(const std::vector<ParameterSpec>& specs);

/// For bind(): Error if the number of weights or gradients does not fit `specs`, or if gradients have another type than
/// weights. With `takes_f32_gradients`, f32 gradients are allowed with bf16 weights.
void check_fits(const char* model, const std::vector<ParameterSpec>& specs, const ModelTensors& tensors,
                bool takes_f32_gradients);

}  // namespace ddptrain
