#include "models/layers/activations.h"

#include <algorithm>
#include <array>
#include <functional>
#include <tuple>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {

bool Lifetime::meets(const Lifetime& other) const {
  for (const Span& mine : spans_) {
    for (const Span& theirs : other.spans_) {
      if (mine.first <= theirs.last && theirs.first <= mine.last) return true;
    }
  }
  return false;
}

std::int64_t Lifetime::steps() const {
  std::int64_t steps = 0;
  for (const Span& span : spans_) steps += span.last - span.first + 1;
  return steps;
}

std::int64_t Lifetime::last() const {
  std::int64_t last = 0;
  for (const Span& span : spans_) last = std::max(last, span.last);
  return last;
}

std::size_t NamedBuffer::bytes() const { return static_cast<std::size_t>(element_count(shape)) * size_of(dtype); }

namespace {

std::size_t end_of(const NamedBuffer& buffer) {
  const std::size_t blocks = (buffer.bytes() + kBufferAlignment - 1) / kBufferAlignment;
  return buffer.begin + blocks * kBufferAlignment;
}

/// Places the buffers one after the other, those with the largest `key` first. Each gets the lowest place that is free
/// of all buffers which live at the same time. Returns the bytes of all.
template <class Key>
std::size_t place_by(const Key& key, std::vector<NamedBuffer>& buffers) {
  std::vector<NamedBuffer*> order;
  for (NamedBuffer& buffer : buffers) order.push_back(&buffer);
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](const NamedBuffer* buffer) { return key(*buffer); });
  std::vector<NamedBuffer*> placed;  // by begin
  std::size_t bytes = 0;
  for (NamedBuffer* buffer : order) {
    buffer->begin = 0;
    for (const NamedBuffer* other : placed) {
      if (!buffer->lifetime.meets(other->lifetime)) continue;
      if (end_of(*buffer) <= other->begin) break;
      buffer->begin = std::max(buffer->begin, end_of(*other));
    }
    placed.insert(std::ranges::upper_bound(placed, buffer->begin, {}, &NamedBuffer::begin), buffer);
    bytes = std::max(bytes, end_of(*buffer));
  }
  return bytes;
}

/// The step in which the buffers that are alive have the most bytes.
std::int64_t fullest_step(const std::vector<NamedBuffer>& buffers) {
  std::int64_t last = 0;
  for (const NamedBuffer& buffer : buffers) last = std::max(last, buffer.lifetime.last());
  std::int64_t fullest = 0;
  std::size_t most = 0;
  for (std::int64_t step = 0; step <= last; ++step) {
    std::size_t bytes = 0;
    for (const NamedBuffer& buffer : buffers) bytes += buffer.lifetime.meets({step, step}) ? buffer.bytes() : 0;
    if (bytes <= most) continue;
    most = bytes;
    fullest = step;
  }
  return fullest;
}

}  // namespace

/// No order is best for all models, so a few are tried: by size; by duration; and the largest buffer first (the
/// logits), then those of the
/// step that needs most memory, which lie side by side, then those that live long.
std::size_t place_buffers(std::vector<NamedBuffer>& buffers) {
  const std::int64_t fullest = fullest_step(buffers);
  std::size_t largest = 0;
  for (const NamedBuffer& buffer : buffers) largest = std::max(largest, buffer.bytes());
  const std::array<std::function<std::size_t()>, 3> orders = {
      [&] { return place_by([](const NamedBuffer& buffer) { return buffer.bytes(); }, buffers); },
      [&] {
        const auto key = [](const NamedBuffer& buffer) { return std::pair(buffer.lifetime.steps(), buffer.bytes()); };
        return place_by(key, buffers);
      },
      [&] {
        const auto key = [&](const NamedBuffer& buffer) {
          const bool is_largest = buffer.bytes() == largest;
          const bool is_in_fullest = buffer.lifetime.meets({fullest, fullest});
          return std::tuple(is_largest, is_in_fullest, buffer.lifetime.steps(), buffer.bytes());
        };
        return place_by(key, buffers);
      }};
  const auto bytes_of = [](const std::function<std::size_t()>& place) { return place(); };
  return (*std::ranges::min_element(orders, {}, bytes_of))();
}

void Activations::add(const std::string& name, DType dtype, const Shape& shape, const Lifetime& lifetime,
                      Tensor& tensor) {
  DDP_CHECK(bytes_ == 0, "{}: asks for memory after place()", name);
  tensor = {nullptr, dtype, shape};
  buffers_.push_back({name, dtype, shape, lifetime, &tensor});
}

void Activations::place() { bytes_ = place_buffers(buffers_); }

void Activations::use(Buffer memory) {
  DDP_CHECK(memory.bytes() >= bytes_, "activations of {} bytes in memory of {}", bytes_, memory.bytes());
  memory_ = std::move(memory);
  for (const NamedBuffer& buffer : buffers_) {
    buffer.tensor->data = static_cast<char*>(memory_.data()) + buffer.begin;
  }
}

}  // namespace ddptrain
