#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// Takes the stack of the main thread, which calls MPI and the device: a signal (SIGRTMIN + 5) makes it note its own.
/// One object per process.
class MainStack {
 public:
  MainStack();
  ~MainStack();
  MainStack(const MainStack&) = delete;
  MainStack& operator=(const MainStack&) = delete;

  /// Innermost frame first, as file(function+offset). Empty if the thread does not answer within a tenth of a second.
  /// To be called by another thread.
  std::vector<std::string> take() const;
};

}  // namespace ddptrain
