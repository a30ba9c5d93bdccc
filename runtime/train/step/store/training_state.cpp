#include "runtime/train/step/store/training_state.h"

#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kValuesAtOnce = std::int64_t{1}
                                       << 20;  // values of a split parameter that ranks put together at once

void fill(Device& device, const Tensor& buffer, float value) {
  const std::vector<float> values(static_cast<std::size_t>(buffer.size()), value);
  const Buffer staging = device.allocate(DType::f32, {buffer.size()});
  device.copy_to_device(staging.data(), values.data(), staging.bytes());
  device.convert(staging.view(DType::f32, {buffer.size()}), {buffer.data, buffer.dtype, {buffer.size()}},
                 device.compute_stream());
  device.synchronize();
}

}  // namespace

TrainingState::TrainingState(const ParameterArena& arena, const std::vector<BufferSpec>& buffers,
                             std::optional<VirtualRanks> ranks)
    : arena_(arena),
      buffer_specs_(buffers),
      device_(arena.device()),
      ranks_(ranks),
      step_(device_.allocate(sizeof(StepState))) {
  for (const BufferSpec& spec : buffers) {
    DDP_CHECK(spec.dtype == DType::f32 || spec.dtype == DType::f64, "buffer {} of {}", spec.name, name_of(spec.dtype));
    buffers_.push_back(device_.allocate(spec.dtype, spec.shape));
    if (spec.initial != 0.0f) fill(device_, buffers_.back().view(spec.dtype, spec.shape), spec.initial);
    if (!several()) continue;
    saved_buffers_.push_back(device_.allocate(static_cast<std::size_t>(ranks_->count) * buffers_.back().bytes()));
  }
  for (std::int64_t i = 0; several() && i < ranks_->count; ++i) save_buffers(i);
}

char* TrainingState::buffer_of(std::size_t buffer, std::int64_t local_index) const {
  return static_cast<char*>(saved_buffers_[buffer].data()) +
         static_cast<std::size_t>(local_index) * buffers_[buffer].bytes();
}

void TrainingState::load_buffers(std::int64_t local_index) {
  for (std::size_t i = 0; i < saved_buffers_.size(); ++i) {
    device_.copy(buffers_[i].data(), buffer_of(i, local_index), buffers_[i].bytes(), device_.compute_stream());
  }
}

void TrainingState::save_buffers(std::int64_t local_index) {
  for (std::size_t i = 0; i < saved_buffers_.size(); ++i) {
    device_.copy(buffer_of(i, local_index), buffers_[i].data(), buffers_[i].bytes(), device_.compute_stream());
  }
}

StateArray TrainingState::array_of(std::size_t buffer) const {
  const BufferSpec& spec = buffer_specs_[buffer];
  StateArray array{"buffer/" + spec.name, Split::none(spec.shape), spec.dtype, Placement::per_rank, {}};
  const std::int64_t size = element_count(spec.shape);
  if (!ranks_) {
    array.pieces = {{0, buffers_[buffer].view(spec.dtype, {size})}};
    return array;
  }
  Shape shape = spec.shape;
  shape.insert(shape.begin(), ranks_->all);
  array.slice = Split::none(shape);
  array.placement = Placement::sharded;
  const Buffer& values = several() ? saved_buffers_[buffer] : buffers_[buffer];
  const std::int64_t together = ranks_->stride == 1 ? ranks_->count : 1;  // consecutive virtual ranks are one piece
  for (std::int64_t i = 0; i < ranks_->count; i += together) {
    array.pieces.push_back({ranks_->at(i) * size, values.stretch(spec.dtype, i * size, together * size)});
  }
  return array;
}

std::vector<Tensor> TrainingState::buffers() const {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    tensors.push_back(buffers_[i].view(buffer_specs_[i].dtype, buffer_specs_[i].shape));
  }
  return tensors;
}

std::vector<StateArray> TrainingState::arrays() const {
  const std::int64_t step_bytes = kTrainingStateBytes;
  std::vector<StateArray> arrays = {{"step",
                                     Split::none({step_bytes}),
                                     DType::u8,
                                     Placement::replicated,
                                     {{0, step_.view(DType::u8, {step_bytes})}}}};
  for (StateArray& array : arena_.state()) arrays.push_back(std::move(array));
  for (std::size_t i = 0; i < buffers_.size(); ++i) arrays.push_back(array_of(i));
  return arrays;
}

void TrainingState::visit_parameters(const Visit& show) const {
  std::vector<float> host;
  Buffer converted;
  device_.finish_unfinished();
  arena_.visit([&](const ParameterSpec& spec, std::int64_t begin, const Tensor& values) {
    const auto size = static_cast<std::size_t>(values.size());
    if (device_.kind() == DeviceKind::cpu && values.dtype == DType::f32) {
      return show(spec, begin, {values.as<const float>(), size});
    }
    Tensor from = values;
    if (values.dtype != DType::f32) {
      if (converted.bytes() < size * sizeof(float)) converted = device_.allocate(DType::f32, values.shape);
      from = converted.view(DType::f32, values.shape);
      device_.convert(values, from, device_.compute_stream());
    }
    host.resize(std::max(host.size(), size));
    device_.copy_to_host(host.data(), from.data, from.bytes());
    show(spec, begin, {host.data(), size});
  });
}

std::string TrainingState::parameter_hash() const {
  Hash128 hash;
  add_parameters(hash);
  return hash.hex();
}

/// Adds the whole values of a split parameter in pieces. Each rank fills in its slice of a piece and leaves zeros for
/// the others; then all ranks' arrays are added.
void TrainingState::add_split(Hash128& hash, const ParameterSpec& spec, std::span<const float> slice,
                              TensorGroup& group) const {
  const std::int64_t size = element_count(spec.split->whole);
  const std::int64_t most = std::min(size, kValuesAtOnce);
  std::vector<float> piece(static_cast<std::size_t>(most));
  const Buffer sum = device_.allocate(DType::f32, {most});
  hash.begin(static_cast<std::size_t>(size) * sizeof(float));
  for (std::int64_t begin = 0; begin < size; begin += most) {
    const std::int64_t end = std::min(begin + most, size);
    std::ranges::fill(piece, 0.0f);
    spec.split->visit(0, spec.size(), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
      const std::int64_t from = std::max(begin, in_whole);
      const std::int64_t to = std::min(end, in_whole + count);
      if (from < to) std::copy_n(slice.begin() + at + from - in_whole, to - from, piece.begin() + from - begin);
    });
    const std::size_t bytes = static_cast<std::size_t>(end - begin) * sizeof(float);
    device_.copy_to_device(sum.data(), piece.data(), bytes);
    group.run({TensorGroup::sum(sum.view(DType::f32, {end - begin}))});
    device_.copy_to_host(piece.data(), sum.data(), bytes);
    hash.go_on(piece.data(), bytes);
  }
}

void TrainingState::add_parameters(Hash128& hash, TensorGroup* group) const {
  std::vector<float> slice;  // of a split parameter
  visit_parameters([&](const ParameterSpec& spec, std::int64_t begin, std::span<const float> values) {
    if (begin == 0) {
      hash.add(spec.name);
      for (const std::int64_t size : spec.slice().whole) hash.add(size);
      if (!spec.split) hash.begin(static_cast<std::size_t>(spec.size()) * sizeof(float));
    }
    if (!spec.split) {
      hash.go_on(values.data(), values.size_bytes());
      return;
    }
    slice.insert(slice.end(), values.begin(), values.end());
    if (std::ssize(slice) < spec.size()) return;
    add_split(hash, spec, slice, *group);
    slice = {};
  });
}

}  // namespace ddptrain
