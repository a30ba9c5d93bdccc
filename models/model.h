#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/ops/token_batch.h"

namespace ddptrain {

/// How a parameter starts. Values come from Philox with the run's seed, the parameter's place in the list and the
/// element, so they depend on nothing else.
struct InitialValue {
  enum class Kind : std::uint8_t { constant, uniform, normal };
  Kind kind = Kind::constant;
  float scale = 0.0f;  ///< The constant; the bound of [-scale, scale]; the standard deviation.

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

/// What one micro-step of a rank works on.
using Batch = std::variant<ImageBatch, TokenBatch>;

/// A model for one rank. It owns its activations; parameters and gradients are views of the arena, given once by
/// bind().
class Model {
 public:
  /// Parameter i has its final gradient of this micro-step, and its weight is not read again in this step, as far as
  /// the compute stream is concerned.
  using Ready = std::function<void(std::size_t)>;

  virtual ~Model() = default;

  /// In the order in which backward completes them (the arena's layout).
  virtual const std::vector<ParameterSpec>& parameters() const = 0;
  /// `weights[i]` and `gradients[i]` belong to parameters()[i] and outlive the model. Gradients have the type of
  /// weights, or are f32 beside bf16 weights where takes_f32_gradients(model) says so (registry.h).
  virtual void bind(std::vector<Tensor> weights, std::vector<Tensor> gradients) = 0;

  /// Forward pass with dropout; adds the batch's loss and hits to *sums, by the end of backward() at the latest. May
  /// begin with the backward pass. `gradient_scale`: factor of the loss of every prediction in the gradient,
  /// 1 / (predictions of the whole step on all ranks). Error where the batch is not of the model's kind.
  virtual void forward(const Batch& batch, float gradient_scale, MetricSums* sums) = 0;
  /// Backward pass of the last forward; every parameter is reported exactly once.
  virtual void backward(bool accumulate, const Ready& ready) = 0;
  /// Forward without dropout.
  virtual void evaluate(const Batch& batch, MetricSums* sums) = 0;

  virtual double flops_per_sample() const = 0;  ///< Forward and backward of training.
  /// What it predicts and throughput counts, and how many of them a sample has: an image has one, a window many tokens.
  virtual const char* unit() const { return "images"; }
  virtual std::int64_t predictions_per_sample() const { return 1; }
  /// Language models: f32 logits (host, without padding) of the token after position `position` of the batch's first
  /// window. Waits. Error for other models.
  virtual std::vector<float> next_token_logits(const TokenBatch& batch, std::int64_t position);
};

/// What of a GPT's activations is computed again in the backward pass in place of being kept.
enum class Recompute : std::uint8_t {
  none,
  gelu,   ///< The GELU's output.
  block,  ///< All but the input of a block.
};

/// A GPT-2 style transformer (Radford et al., "Language models are unsupervised multitask learners", 2019).
struct GptShape {
  std::int64_t layers = 12;
  std::int64_t width = 768;
  std::int64_t heads = 12;
  std::int64_t feed_forward = 3072;
  std::int64_t sequence = 1024;  ///< Tokens of a window; positions that are learned.
  std::int64_t vocabulary = 50257;
  float norm_epsilon = 1e-5f;

  std::int64_t padded_vocabulary() const { return (vocabulary + 127) / 128 * 128; }
};

struct ModelOptions {
  std::int64_t max_batch = 0;  ///< Samples per micro-step.
  std::uint64_t seed = 0;      ///< Of dropout.
  bool dropout = true;         ///< Of the CNN, whose rates are fixed.
  GptShape gpt = {};
  float gpt_dropout = 0.0f;  ///< Rate, on the embedding and on what each half of a block adds.
  Recompute recompute = Recompute::none;
  std::int64_t head_rows = 0;  ///< Rows of logits that a GPT has at a time; 0: an eighth of all, 4,096 at least.
};

}  // namespace ddptrain
