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
  const char* unit() const override { return inner_->unit(); }

 private:
  std::unique_ptr<Model> inner_;
};

}  // namespace ddptrain::tests
