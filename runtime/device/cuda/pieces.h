#pragma once

#include <cstddef>

namespace ddptrain::cuda {

/// Lays out arrays in one piece of memory, at least 256 bytes apart. Used twice: first with null, to get the size, then
/// with the memory.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(std::size_t count) {
    char* piece = memory_ + bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(piece);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace ddptrain::cuda
