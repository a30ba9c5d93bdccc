#pragma once

#include <cstddef>
#include <functional>
#include <string>
#include <utility>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// Owns memory on a device. Move-only. The destructor calls the allocator's function. Aligned to 256 bytes or more. The
/// allocator (device or communicator) outlives the buffer.
class Buffer {
 public:
  using Free = std::function<void(void*)>;

  Buffer() = default;
  Buffer(void* data, std::size_t bytes, Free free) : data_(data), bytes_(bytes), free_(std::move(free)) {}
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    Buffer(std::move(other)).swap(*this);
    return *this;
  }
  ~Buffer() {
    if (data_ != nullptr) free_(data_);
  }

  void* data() const { return data_; }
  explicit operator bool() const { return data_ != nullptr; }
  std::size_t bytes() const { return bytes_; }

  /// View of the buffer from its start.
  Tensor view(DType dtype, Shape shape) const { return {data_, dtype, std::move(shape)}; }
  /// [count]: the elements from number `begin` on.
  Tensor stretch(DType dtype, std::int64_t begin, std::int64_t count) const {
    return view(dtype, {}).stretch(begin, count);
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(free_, other.free_);
  }

  void* data_ = nullptr;
  std::size_t bytes_ = 0;
  Free free_;
};

/// Memory of a rank, for reports.
struct MemoryUse {
  std::string purpose;
  std::size_t bytes = 0;
  bool on_host = false;  ///< It is in the memory of the host although the device has its own.
};

template <class Buffers>
std::size_t total_bytes(const Buffers& buffers) {
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes();
  return bytes;
}

}  // namespace ddptrain
