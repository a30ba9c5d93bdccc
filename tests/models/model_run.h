#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/train/model.h"
#include "tests/ops/bench.h"

namespace ddptrain::tests {

/// A model that was bound to its data, and the slice of them that a test trains on.
struct BoundModel {
  std::unique_ptr<Model> model;
  Slice slice;
};

/// A model with data, weights and gradients of its own, without arena or optimizer. Weights are random on the scale of
/// their initial values and rounded to `rounding`, so that several devices can be given the same.
class ModelRun {
 public:
  /// `make` puts its data on the bench.
  ModelRun(Device& device, DType rounding, const std::function<BoundModel(Bench&)>& make)
      : bench_(device, rounding), bound_(make(bench_)), model_(bound_.model.get()) {
    std::uint32_t seed = 500;
    for (const ParameterSpec& spec : model_->parameters()) {
      const float bound = spec.initial.kind == InitialValue::Kind::constant ? 0.0f : spec.initial.scale;
      Values values = random_values(spec.size(), seed++, -bound, bound);
      if (bound == 0.0f) values.assign(values.size(), spec.initial.scale);
      values.resize(static_cast<std::size_t>(spec.padded_size()));
      weights_.push_back({bench_.put(values, {spec.padded_size()}).data, device.dtype(), spec.shape});
      gradients_.push_back(bench_.poisoned(spec.shape));
    }
    ModelTensors tensors{weights_, gradients_};
    for (const BufferSpec& spec : model_->buffers()) {
      const Values values(static_cast<std::size_t>(element_count(spec.shape)), spec.initial);
      tensors.buffers.push_back(bench_.put_as(values, spec.dtype, spec.shape));
    }
    model_->bind(tensors);
  }

  Bench& bench() { return bench_; }
  Model& model() { return *model_; }
  Slice slice() const { return bound_.slice; }
  Slice slice(std::int64_t count) const { return {bound_.slice.order, bound_.slice.step, count}; }
  const std::vector<Tensor>& weights() const { return weights_; }

  MetricSums forward(const Slice& slice, float gradient_scale) {
    sums_ = bench_.put_object(MetricSums{});
    model_->forward(slice, gradient_scale, sums_, [](std::size_t) {});
    return sums();
  }
  /// Of the last forward; complete after backward at the latest.
  MetricSums sums() { return bench_.take_object(sums_); }
  MetricSums evaluate(const Slice& slice) {
    MetricSums* sums = bench_.put_object(MetricSums{});
    model_->evaluate(slice, sums);
    return bench_.take_object(sums);
  }
  /// Gradients by parameter name.
  std::map<std::string, Values> backward(bool accumulate) {
    model_->backward(accumulate, [](std::size_t) {});
    std::map<std::string, Values> result;
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      result[model_->parameters()[i].name] = bench_.take(gradients_[i]);
    }
    return result;
  }

 private:
  Bench bench_;
  BoundModel bound_;
  Model* model_;
  std::vector<Tensor> weights_;
  std::vector<Tensor> gradients_;
  MetricSums* sums_ = nullptr;
};

/// What the model says of its work fits the order in which its backward pass completes gradients.
inline void expect_work_in_the_order_of_backward(ModelRun& run) {
  const ModelWork work = run.model().work();
  double backward = 0.0;
  for (const LayerWork& layer : work.layers) backward += layer.backward;
  ASSERT_EQ(work.ready_after.size(), run.model().parameters().size());
  run.forward(run.slice(), 1.0f);
  double before = 0.0;
  run.model().backward(false, [&](std::size_t parameter) {
    EXPECT_GE(work.ready_after[parameter], before) << run.model().parameters()[parameter].name;
    before = work.ready_after[parameter];
  });
  EXPECT_DOUBLE_EQ(before, backward);
}

}  // namespace ddptrain::tests
