#pragma once

/// Kernels run one after the other.

namespace ddptrain::cuda {

inline void wait_for_predecessor() {}
inline void let_successor_start() {}
inline void follow_predecessor() {}
constexpr int resident_at_most(int, int blocks) { return blocks; }

}  // namespace ddptrain::cuda
