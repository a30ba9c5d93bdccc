#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <memory>

namespace ddptrain::emulated {

/// Memory of exactly the bytes of a workspace, aligned as that of a GPU. All of it is NaN. Its destructor fails the
/// test if a kernel has written behind the end.
class Scratch {
 public:
  explicit Scratch(std::size_t bytes)
      : bytes_(bytes), memory_(new (std::align_val_t{kAlignment}) char[bytes + kGuard]) {
    std::fill_n(memory_, bytes + kGuard, kNaN);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;
  ~Scratch() {
    const char* const end = memory_ + bytes_;
    EXPECT_TRUE(std::all_of(end, end + kGuard, [](char c) { return c == kNaN; })) << "a kernel wrote behind its memory";
    ::operator delete[](memory_, std::align_val_t{kAlignment});
  }

  void* data() const { return memory_; }

 private:
  static constexpr std::size_t kAlignment = 256, kGuard = 1 << 20;
  static constexpr char kNaN = '\xFF';

  std::size_t bytes_;
  char* memory_;
};

}  // namespace ddptrain::emulated
