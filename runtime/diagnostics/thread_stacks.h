#pragma once

#include <string>
#include <vector>

namespace ddptrain {

struct ThreadStack {
  int id = 0;
  std::string name;
  char state = '?';  ///< Of proc(5): R runs, S sleeps, D waits for a disk ...
  std::vector<std::string>
      frames;  ///< Innermost first, as file(function+offset); empty where the thread did not answer.
};

/// Lets stacks of all threads be taken: a signal (SIGRTMIN + 5) has each thread note its own. One per process.
class ThreadStacks {
 public:
  ThreadStacks();
  ~ThreadStacks();
  ThreadStacks(const ThreadStacks&) = delete;
  ThreadStacks& operator=(const ThreadStacks&) = delete;

  /// Those of all threads but the calling one. Waits a moment for each.
  std::vector<ThreadStack> take() const;
};

}  // namespace ddptrain
