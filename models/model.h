#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/backend/backend.h"

namespace ddptrain {

/// How a parameter starts: uniform in [-bound, bound], or zero for bound 0. Values come from Philox with the run's
/// seed, the parameter's place in the list and the element, so they depend on nothing else.
struct ParameterSpec {
  std::string name;
  Shape shape;
  float init_bound = 0.0f;
  bool decays = true;  ///< Weight decay applies (not to biases).
};

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
  /// `weights[i]` and `gradients[i]` belong to parameters()[i] and outlive the model.
  virtual void bind(std::vector<Tensor> weights, std::vector<Tensor> gradients) = 0;

  /// Forward pass with dropout; adds the batch's loss and hits to *sums, by the end of backward() at the latest.
  /// `gradient_scale`: factor of the loss of every sample in the gradient, 1 / (samples of the whole step on all
  /// ranks).
  virtual void forward(const ImageBatch& batch, float gradient_scale, MetricSums* sums) = 0;
  /// Backward pass of the last forward; every parameter is reported exactly once.
  virtual void backward(bool accumulate, const Ready& ready) = 0;
  /// Forward without dropout.
  virtual void evaluate(const ImageBatch& batch, MetricSums* sums) = 0;

  virtual double flops_per_sample() const = 0;  ///< Forward and backward of training.
};

struct ModelOptions {
  std::int64_t max_batch = 0;  ///< Rows per micro-step.
  std::uint64_t seed = 0;      ///< Of dropout.
  bool dropout = true;
};

}  // namespace ddptrain
