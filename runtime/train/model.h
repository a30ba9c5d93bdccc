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

/// What the runtime trains: the interface that every model implements.

namespace ddptrain {

class TensorGroup;

/// How a parameter starts: values that are read where `read` is set, else values drawn from Philox with the run's seed,
/// the parameter's identity and the element, so that they depend on nothing else.
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
  Shape shape;  ///< Of what this rank has.
  InitialValue initial = {};
  bool decays = true;  ///< Weight decay applies (not to biases).
  /// Memory behind the parameter is kept, zero, for its leading dimension to be read as this many rows; 0: none.
  std::int64_t padded_rows = 0;
  /// What of the parameter this rank has, if ranks split it. Its initial values are those of the whole.
  std::optional<Split> split = {};
  /// Another rank that has a part of the same model has the same values, and is the one that counts and stores them.
  bool is_copy = false;

  std::int64_t size() const { return element_count(shape); }
  Split part() const { return split.value_or(Split::none(shape)); }
  std::int64_t padded_size() const;  ///< Elements that it takes in memory.
  /// What random numbers of the parameter are drawn by: the low 32 bits of the XXH3-128 of its name. Its place among
  /// the parameters, and which of them this rank has, do not matter.
  std::uint32_t identity() const;
};

std::int64_t element_count(const std::vector<ParameterSpec>& specs);  ///< Of all parameters, without padding.

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
  TensorGroup* group = nullptr;  ///< The ranks with the other parts of what is split; null: nothing is.
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

/// Messages of one kind that a rank sends in a step.
struct Sent {
  std::string axis;        ///< data (gradients), gather (of the weights that ZeRO divides), pipeline or tensor
  std::string when;        ///< forward, backward, update, or use: before each pass of a unit
  std::int64_t times = 0;  ///< Collectives, or messages to another stage.
  std::int64_t bytes = 0;  ///< Of all of them together; a collective sends as a ring does.
};

/// A part of a model that runs as a whole: an embedding, a block, a head. Its parameters are gathered, used and reduced
/// together; each parameter belongs to one unit.
struct Unit {
  std::string name;
  std::size_t first = 0;                     ///< Place of its first parameter in Model::parameters(),
  std::size_t count = 0;                     ///< and how many follow each other from there.
  std::vector<std::size_t> also_reads = {};  ///< Parameters of other units that it reads: tied weights.
};

/// What a model works on until the next one.
struct MicroBatch {
  Slice slice;
  MetricSums* sums = nullptr;  ///< Loss and hits are added to it.
  bool training = true;        ///< Training samples, with dropout. Otherwise test samples, without a trace in training.
  /// Factor of the loss of every prediction in the gradient, 1 / (predictions of the whole step on all ranks). 0: no
  /// backward pass follows, and nothing of it may be begun.
  float gradient_scale = 0.0f;
};

/// What the model of one stage of a pipeline exchanges with that of the next one. Tensors without data are not used.
struct StageBoundary {
  std::vector<Tensor> activations;  ///< Of a pass, from the stage before to the one behind ...
  std::vector<Tensor> gradients;    ///< ... and back. As many as the stage on the other side has, of the same sizes.
  Tensor tied_weight;    ///< That a later unit reads, too; it goes on from stage to stage, once in each step.
  Tensor tied_gradient;  ///< What that unit adds to the weight's gradient in a pass; it goes back.
};

/// A model for one rank, and the data that it was bound to when it was made. It owns its activations; parameters,
/// gradients and buffers belong to the runtime, which runs the model unit by unit.
class Model {
 public:
  /// Parameter i has its final gradient of this micro-batch, and its weight is not read again in this step, as far as
  /// the compute stream is concerned.
  using Ready = std::function<void(std::size_t)>;

  virtual ~Model() = default;

  /// In the order in which backward completes them (the arena's layout).
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  /// In the order of forward. By default one, of all parameters.
  virtual std::vector<Unit> units() const { return {{"model", 0, parameters().size()}}; }
  virtual std::vector<BufferSpec> buffers() const { return {}; }
  /// The tensors outlive the model. Error where they do not fit the specs, or the model does not take gradients of
  /// their type.
  virtual void bind(const ModelTensors& tensors) = 0;

  /// The values of buffers have been replaced, as when a run is resumed.
  virtual void restored() {}

  /// The passes that follow work on this one. Reads no weights.
  virtual void begin(const MicroBatch& batch) = 0;
  /// Forward pass of a unit, once for each in their order. May begin with the backward pass. The tensors of gradients,
  /// which may be on their way to other ranks until then, are left alone. All of the loss is in the sums by the end of
  /// the backward pass at the latest.
  virtual void forward(std::size_t unit) = 0;
  /// Backward pass of a unit, once for each in reverse order. Over all units every parameter is reported exactly once:
  /// those of a unit in its own call or in the next one. Gradients of the unit before in the order of forward may be
  /// written, too.
  virtual void backward(std::size_t unit, bool accumulate, const Ready& ready) = 0;

  /// The model of a stage: where forward() of its first unit finds what comes from the stage before, and backward() of
  /// that unit leaves what goes there; nothing where this is the first stage. Valid until the next pass.
  virtual StageBoundary before() { return {}; }
  /// The same of its last unit and the stage behind.
  virtual StageBoundary behind() { return {}; }
  /// Another one of the same, for a pass that runs while this one is between forward and backward. What goes on from
  /// pass to pass is of both. It is bound to the same tensors. Null where there cannot be one.
  virtual std::unique_ptr<Model> sibling() { return nullptr; }

  /// Elements of all parameters, those of other stages included.
  virtual std::int64_t parameters_of_all_stages() const;
  virtual double flops_per_sample() const = 0;  ///< Forward and backward of training, as MFU counts them.
  /// By default one layer, with a third of flops_per_sample() forward, whose gradients are complete at the end.
  virtual ModelWork work() const;
  /// To the ranks with the other stages and parts, in so many passes of the largest batch. What backward repeats of
  /// forward is forward's.
  virtual std::vector<Sent> sends(std::int64_t /*passes*/) const { return {}; }
  virtual std::vector<MemoryUse> memory() const { return {}; }  ///< What it holds: activations, data.
  /// What it predicts and throughput counts, and how many of them a sample has: an image has one, a window many tokens.
  virtual const char* unit() const = 0;
  virtual std::int64_t predictions_per_sample() const { return 1; }
};

/// begin() and the forward pass of all units.
void run_forward(Model& model, const MicroBatch& batch);
/// The backward pass of all units.
void run_backward(Model& model, bool accumulate, const Model::Ready& ready);

/// Error where a parameter is in no unit or in several.
void check_units(const std::vector<Unit>& units, std::size_t parameters);

/// For bind(): Error where there are not as many weights and gradients as `specs` says, or gradients are of another
/// type than weights and `takes_f32_gradients` does not allow for it.
void check_fits(const char* model, const std::vector<ParameterSpec>& specs, const ModelTensors& tensors,
                bool takes_f32_gradients);

}  // namespace ddptrain
