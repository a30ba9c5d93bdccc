#include "runtime/train/model.h"

#include <algorithm>
#include <map>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"

namespace ddptrain {

std::int64_t ParameterSpec::padded_size() const {
  const std::int64_t rows = shape.empty() ? 1 : shape[0];
  return rows > 0 ? size() / rows * std::max(rows, padded_rows) : 0;
}

std::uint32_t ParameterSpec::identity() const {
  return static_cast<std::uint32_t>(xxh3_128_value(name.data(), name.size())[1]);
}

double ModelWork::flop() const {
  double flop = 0.0;
  for (const LayerWork& layer : layers) flop += layer.forward + layer.backward;
  return flop;
}

std::int64_t element_count(const std::vector<ParameterSpec>& specs) {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : specs) count += spec.size();
  return count;
}

ModelWork Model::work() const {
  const LayerWork all{"model", flops_per_sample() / 3.0, flops_per_sample() * 2.0 / 3.0};
  return {{all}, std::vector<double>(parameters().size(), all.backward)};
}

void run_forward(Model& model, const MicroBatch& batch) {
  model.begin(batch);
  const std::size_t units = model.units().size();
  for (std::size_t unit = 0; unit < units; ++unit) model.forward(unit);
}

void run_backward(Model& model, bool accumulate, const Model::Ready& ready) {
  for (std::size_t unit = model.units().size(); unit-- > 0;) model.backward(unit, accumulate, ready);
}

void check_units(const std::vector<Unit>& units, std::size_t parameters) {
  std::vector<int> uses(parameters);
  for (const Unit& unit : units) {
    for (std::size_t i = unit.first; i < unit.first + unit.count; ++i) ++uses.at(i);
  }
  for (std::size_t i = 0; i < parameters; ++i) DDP_CHECK(uses[i] == 1, "parameter {} is in {} units", i, uses[i]);
}

void check_identities(const std::vector<ParameterSpec>& specs) {
  DDP_CHECK(specs.size() <= UINT16_MAX, "{} parameters, at most {} fit", specs.size(), UINT16_MAX);
  std::map<std::uint32_t, std::string> names;
  for (const ParameterSpec& spec : specs) {
    const auto [other, added] = names.try_emplace(spec.identity(), spec.name);
    DDP_CHECK(added, "parameters {} and {} are of one identity: rename one", other->second, spec.name);
  }
}

void check_fits(const char* model, const std::vector<ParameterSpec>& specs, const ModelTensors& tensors,
                bool takes_f32_gradients) {
  DDP_CHECK(tensors.weights.size() == specs.size() && tensors.gradients.size() == specs.size(),
            "{}: {} weights and {} gradients, expected {}", model, tensors.weights.size(), tensors.gradients.size(),
            specs.size());
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const DType gradient = tensors.gradients[i].dtype;
    DDP_CHECK(gradient == tensors.weights[i].dtype || (takes_f32_gradients && gradient == DType::f32),
              "{} does not take gradients of {}", model, name_of(gradient));
  }
}

}  // namespace ddptrain
