#include "runtime/train/training_state.h"

#include "runtime/core/error.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

void fill(Device& device, const Tensor& buffer, float value) {
  const std::vector<float> values(static_cast<std::size_t>(buffer.size()), value);
  const Buffer staging = device.allocate(DType::f32, {buffer.size()});
  device.copy_to_device(staging.data(), values.data(), staging.bytes());
  device.convert(staging.view(DType::f32, {buffer.size()}), {buffer.data, buffer.dtype, {buffer.size()}},
                 device.compute_stream());
  device.synchronize();
}

}  // namespace

TrainingState::TrainingState(const ParameterArena& arena, const std::vector<BufferSpec>& buffers, Device& device)
    : arena_(arena), buffer_specs_(buffers), step_(device.allocate(sizeof(StepState))) {
  for (const BufferSpec& spec : buffers) {
    DDP_CHECK(spec.dtype == DType::f32 || spec.dtype == DType::f64, "buffer {} of {}", spec.name, name_of(spec.dtype));
    buffers_.push_back(device.allocate(spec.dtype, spec.shape));
    if (spec.initial != 0.0f) fill(device, buffers_.back().view(spec.dtype, spec.shape), spec.initial);
  }
}

std::vector<Tensor> TrainingState::buffers() const {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    tensors.push_back(buffers_[i].view(buffer_specs_[i].dtype, buffer_specs_[i].shape));
  }
  return tensors;
}

std::vector<StateArray> TrainingState::arrays() const {
  const std::int64_t step_bytes = sizeof(StepState);
  std::vector<StateArray> arrays = {
      {"step", {step_bytes}, DType::u8, Placement::replicated, {{0, step_.view(DType::u8, {step_bytes})}}}};
  for (StateArray& array : arena_.state()) arrays.push_back(std::move(array));
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    const BufferSpec& spec = buffer_specs_[i];
    const Tensor values = buffers_[i].view(spec.dtype, {element_count(spec.shape)});
    arrays.push_back({"buffer/" + spec.name, spec.shape, spec.dtype, Placement::per_rank, {{0, values}}});
  }
  return arrays;
}

void TrainingState::visit_parameters(const std::function<void(const ParameterSpec&, const float*)>& show) const {
  arena_.visit(show);
}

std::string TrainingState::parameter_hash() const {
  Hash128 hash;
  visit_parameters([&](const ParameterSpec& spec, const float* values) {
    hash.add(spec.name);
    for (const std::int64_t size : spec.shape) hash.add(size);
    hash.add(values, static_cast<std::size_t>(spec.size()) * sizeof(float));
  });
  return hash.hex();
}

}  // namespace ddptrain
