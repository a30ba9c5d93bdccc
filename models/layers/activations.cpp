#include "models/layers/activations.h"

#include <algorithm>
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

}  // namespace

/// No order is best for all models, so a few are tried.
std::size_t place_buffers(std::vector<NamedBuffer>& buffers) {
  const auto size = [](const NamedBuffer& buffer) { return buffer.bytes(); };
  const auto duration = [](const NamedBuffer& buffer) { return std::pair(buffer.lifetime.steps(), buffer.bytes()); };
  const auto both = [](const NamedBuffer& buffer) {
    return buffer.bytes() * static_cast<std::size_t>(buffer.lifetime.steps());
  };
  const auto place = [&](std::size_t order) {
    return order == 0 ? place_by(size, buffers) : order == 1 ? place_by(duration, buffers) : place_by(both, buffers);
  };
  std::size_t best = 0;
  std::size_t least = place(best);
  for (const std::size_t order : {std::size_t{1}, std::size_t{2}}) {
    if (const std::size_t bytes = place(order); bytes < least) {
      best = order;
      least = bytes;
    }
  }
  return place(best);
}

void Activations::add(const std::string& name, DType dtype, const Shape& shape, const Lifetime& lifetime,
                      Tensor& tensor) {
  DDP_CHECK(!memory_, "{}: asks for memory after allocate()", name);
  tensor = {nullptr, dtype, shape};
  buffers_.push_back({name, dtype, shape, lifetime, &tensor});
}

void Activations::allocate() {
  memory_ = device_.allocate(place_buffers(buffers_));
  for (const NamedBuffer& buffer : buffers_) {
    buffer.tensor->data = static_cast<char*>(memory_.data()) + buffer.begin;
  }
}

}  // namespace ddptrain
