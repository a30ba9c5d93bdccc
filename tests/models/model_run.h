#pragma once

#include <algorithm>
#include <cmath>
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
    run_forward(*model_, {slice, sums_, true, gradient_scale});
    return sums();
  }
  /// Of the last forward; complete after backward at the latest.
  MetricSums sums() { return bench_.take_object(sums_); }
  MetricSums evaluate(const Slice& slice) {
    MetricSums* sums = bench_.put_object(MetricSums{});
    run_forward(*model_, {slice, sums, false});
    return bench_.take_object(sums);
  }
  /// Gradients by parameter name.
  std::map<std::string, Values> backward(bool accumulate) {
    run_backward(*model_, accumulate, [](std::size_t) {});
    return gradients();
  }
  std::map<std::string, Values> gradients() {
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
  run_backward(run.model(), false, [&](std::size_t parameter) {
    EXPECT_GE(work.ready_after[parameter], before) << run.model().parameters()[parameter].name;
    before = work.ready_after[parameter];
  });
  EXPECT_DOUBLE_EQ(before, backward);
}

/// The passes of a unit read the weights that it says and no others, which are NaN meanwhile. On a CPU, in f64.
inline void expect_units_read_their_weights(ModelRun& run) {
  Model& model = run.model();
  const double loss = run.forward(run.slice(), 0.25f).loss;
  const std::map<std::string, Values> expected = run.backward(false);
  std::vector<Values> values;
  for (const Tensor& weight : run.weights())
    values.emplace_back(weight.as<double>(), weight.as<double>() + weight.size());
  const auto leave_those_of = [&](const Unit& unit) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool reads = (i >= unit.first && i < unit.first + unit.count) || std::ranges::count(unit.also_reads, i) > 0;
      const Values shown = reads ? values[i] : Values(values[i].size(), std::nan(""));
      std::ranges::copy(shown, run.weights()[i].as<double>());
    }
  };
  const std::vector<Unit> units = model.units();
  check_units(units, values.size());
  MetricSums sums;
  model.begin({run.slice(), &sums, true, 0.25f});
  for (std::size_t unit = 0; unit < units.size(); ++unit) {
    leave_those_of(units[unit]);
    model.forward(unit);
  }
  for (std::size_t unit = units.size(); unit-- > 0;) {
    leave_those_of(units[unit]);
    model.backward(unit, false, [](std::size_t) {});
  }
  EXPECT_EQ(sums.loss, loss);
  EXPECT_EQ(run.gradients(), expected);
}

}  // namespace ddptrain::tests
