#pragma once

#include <string>

namespace ddptrain {

/// How gradients are reduced over ranks, for reports.
struct GradientPath {
  std::string name;  ///< none, mpi, plain, symmetric, symmetric+fused (one kernel reduces and updates the last bucket),
                     ///< peers (direct peer reduction), tree (of virtual ranks)
  std::string text;  ///< For people, such as "NCCL symmetric + fused last bucket".
  std::string reason;  ///< Why it is not the fastest path of this library; empty if it is.
};

}  // namespace ddptrain
