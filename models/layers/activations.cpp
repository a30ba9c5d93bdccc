#include "models/layers/activations.h"

#include <algorithm>

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

std::size_t NamedBuffer::bytes() const { return static_cast<std::size_t>(element_count(shape)) * size_of(dtype); }

/// Large buffers come first. Each gets the lowest place that is free of all buffers which live at the same time.
std::size_t place_buffers(std::vector<NamedBuffer>& buffers) {
  const auto end_of = [](const NamedBuffer& buffer) {
    const std::size_t blocks = (buffer.bytes() + kBufferAlignment - 1) / kBufferAlignment;
    return buffer.begin + blocks * kBufferAlignment;
  };
  std::vector<NamedBuffer*> by_size;
  for (NamedBuffer& buffer : buffers) by_size.push_back(&buffer);
  std::ranges::stable_sort(by_size, std::ranges::greater{}, [](const NamedBuffer* buffer) { return buffer->bytes(); });
  std::vector<NamedBuffer*> placed;  // by begin
  std::size_t bytes = 0;
  for (NamedBuffer* buffer : by_size) {
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
