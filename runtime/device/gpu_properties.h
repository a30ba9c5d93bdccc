#pragma once

#include <cstddef>

namespace ddptrain {

/// The properties of a GPU by which operations choose their kernels and the size of their workspaces. The default is an
/// H100 SXM or H200, and a program with code for it.
struct GpuProperties {
  int capability = 90;                      ///< Compute capability: 90 for 9.0.
  int multiprocessors = 132;                ///< All of them.
  bool warpgroups = true;                   ///< Whether the GPU runs code for 9.0a: warpgroup matrix instructions.
  std::size_t shared_memory = 227U * 1024;  ///< Maximum of a thread block, in bytes.
};

}  // namespace ddptrain
