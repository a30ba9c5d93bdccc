#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "runtime/train/model.h"

namespace ddptrain::tests {

/// A model that does as another one does.
class ModelAround : public Model {
 public:
  explicit ModelAround(std::unique_ptr<Model> inner) : inner_(std::move(inner)) {}

  const std::vector<ParameterSpec>& parameters() const override { return inner_->parameters(); }
  std::vector<Unit> units() const override { return inner_->units(); }
  std::vector<BufferSpec> buffers() const override { return inner_->buffers(); }
  void bind(const ModelTensors& tensors) override { inner_->bind(tensors); }
  void begin(const MicroBatch& batch) override { inner_->begin(batch); }
  void forward(std::size_t unit) override { inner_->forward(unit); }
  void backward(std::size_t unit, bool accumulate, const Ready& ready) override {
    inner_->backward(unit, accumulate, ready);
  }
  double flops_per_sample() const override { return inner_->flops_per_sample(); }
  const char* sample_unit() const override { return inner_->sample_unit(); }

 private:
  std::unique_ptr<Model> inner_;
};

/// A model with a buffer of which each rank, and each virtual rank, has its own: a number of the samples it has seen,
/// which changes gradients and the losses of evaluations. Counts in host memory (CPU).
class Counting final : public ModelAround {
 public:
  using ModelAround::ModelAround;

  std::vector<BufferSpec> buffers() const override { return {{"seen", {3}, DType::f32, 0.5f}}; }
  void bind(const ModelTensors& tensors) override {
    ModelAround::bind(tensors);
    seen_ = tensors.buffers.at(0);
  }
  void restored() override { ++times_restored_; }
  void begin(const MicroBatch& batch) override {
    MicroBatch raised = batch;
    float& seen = seen_.as<float>()[1];
    if (batch.training) seen += static_cast<float>(1 + batch.slice.order.first % 7);
    raised.gradient_scale *= 1.0f + 0.01f * seen;
    if (!batch.training) batch.sums->loss += seen;
    ModelAround::begin(raised);
  }
  Tensor seen() const { return seen_; }
  int times_restored() const { return times_restored_; }

 private:
  Tensor seen_;
  int times_restored_ = 0;
};

}  // namespace ddptrain::tests
