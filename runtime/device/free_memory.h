#pragma once

#include <cstddef>

namespace ddptrain {

/// Bytes that are free on the current GPU; 0 in a build without CUDA.
std::size_t free_gpu_memory();

}  // namespace ddptrain
