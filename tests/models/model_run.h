#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
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
  /// To be bound in place of the run's own.
  std::vector<Tensor> poisoned_gradients() {
    std::vector<Tensor> gradients;
    for (const ParameterSpec& spec : model_->parameters()) gradients.push_back(bench_.poisoned(spec.shape));
    return gradients;
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

inline void assign(const Tensor& tensor, const Values& values) {
  if (tensor.dtype == DType::f64) return void(std::ranges::copy(values, tensor.as<double>()));
  std::ranges::copy(values, tensor.as<float>());
}

/// Gradients of `scale` times the loss, along random directions, against its finite differences. In f64.
inline void expect_gradients_of_the_loss(ModelRun& run, float scale) {
  constexpr double kStep = 1e-6;
  run.forward(run.slice(), scale);
  const std::map<std::string, Values> gradients = run.backward(false);
  for (std::size_t i = 0; i < run.weights().size(); ++i) {
    const std::string& name = run.model().parameters()[i].name;
    const Values start = run.bench().take(run.weights()[i]);
    EXPECT_GT(norm(gradients.at(name)), 1e-4) << name;
    for (const std::uint32_t seed : {1u, 2u, 3u}) {
      const Values direction = random_values(run.weights()[i].size(), seed);
      const auto loss = [&](double step) {
        Values moved = start;
        for (std::size_t j = 0; j < start.size(); ++j) moved[j] += step * direction[j];
        assign(run.weights()[i], moved);
        return run.forward(run.slice(), scale).loss * static_cast<double>(scale);
      };
      const double measured = (loss(kStep) - loss(-kStep)) / (2 * kStep);
      assign(run.weights()[i], start);
      double expected = 0.0;
      for (std::size_t j = 0; j < start.size(); ++j) expected += gradients.at(name)[j] * direction[j];
      EXPECT_NEAR(measured, expected, 1e-6 * (std::abs(expected) + 1e-2)) << name;
    }
  }
}

/// Backward reports every parameter once: when its gradient is final, and its weight is not read again. A rerun of the
/// same batch gives the same gradients, so they must stand there when they are reported. In f64.
inline void expect_final_gradients_when_reported(ModelRun& run, bool in_order = true) {
  run.forward(run.slice(), 0.25f);
  const std::map<std::string, Values> expected = run.backward(false);
  run.forward(run.slice(), 0.25f);
  const std::vector<Tensor> gradients = run.poisoned_gradients();
  run.model().bind({run.weights(), gradients});
  std::vector<std::size_t> reported;
  run_backward(run.model(), false, [&](std::size_t i) {
    reported.push_back(i);
    EXPECT_EQ(run.bench().take(gradients.at(i)), expected.at(run.model().parameters()[i].name));
    assign(run.weights()[i], Values(static_cast<std::size_t>(run.weights()[i].size()), std::nan("")));
  });
  if (!in_order) std::ranges::sort(reported);
  ASSERT_EQ(reported.size(), gradients.size());
  for (std::size_t i = 0; i < reported.size(); ++i) EXPECT_EQ(reported[i], i);
}

/// A batch gives the same loss and gradients in one micro-step and in two. Dropout follows the position in the global
/// batch. In f64.
inline void expect_micro_steps_that_add_up(ModelRun& run) {
  const double loss = run.forward(run.slice(), 0.25f).loss;
  const std::map<std::string, Values> expected = run.backward(false);
  Slice part = run.slice(1);
  double sum = run.forward(part, 0.25f).loss;
  run.backward(false);
  part.order.first += 1;
  part.count = run.slice().count - 1;
  sum += run.forward(part, 0.25f).loss;
  for (const auto& [name, values] : run.backward(true)) {
    EXPECT_LE(relative_error(values, expected.at(name)), 1e-12) << name;
  }
  EXPECT_NEAR(sum, loss, 1e-12 * loss);
}

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

/// What every model must do. `make` makes it anew each time, in f64 on a CPU.
inline void expect_a_model(const std::function<ModelRun()>& make, bool in_order = true) {
  const auto expect = [&](const char* what, const std::function<void(ModelRun&)>& test) {
    SCOPED_TRACE(what);
    ModelRun run = make();
    test(run);
  };
  expect("gradients", [](ModelRun& run) { expect_gradients_of_the_loss(run, 0.25f); });
  expect("reports", [&](ModelRun& run) { expect_final_gradients_when_reported(run, in_order); });
  expect("micro-steps", expect_micro_steps_that_add_up);
  expect("work", expect_work_in_the_order_of_backward);
  expect("units", expect_units_read_their_weights);
}

}  // namespace ddptrain::tests
