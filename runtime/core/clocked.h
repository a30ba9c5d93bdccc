#pragma once

#include <chrono>

namespace ddptrain {

/// Adds the seconds for which it lives.
class Clocked {
 public:
  explicit Clocked(double& seconds) : seconds_(seconds) {}
  ~Clocked() { seconds_ += std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count(); }
  Clocked(const Clocked&) = delete;
  Clocked& operator=(const Clocked&) = delete;

 private:
  double& seconds_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

}  // namespace ddptrain
