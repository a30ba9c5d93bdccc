#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "runtime/device/cuda/cuda_utils.h"

/// Programmatic dependent launch (CUDA programming guide): a kernel may start while its predecessor in the stream still
/// runs. It prepares itself until it calls wait_for_predecessor(). The same holds in captured graphs. If GPU or code
/// are older than compute capability 9.0, a kernel starts when its predecessor has ended.

namespace ddptrain::cuda {

/// Returns when the predecessor's results can be read. Every kernel that launch_early launches calls it.
__device__ __forceinline__ void wait_for_predecessor() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
/// The successor may start once all thread blocks have called this or ended. Kernels that write weights do not call it:
/// successors of successors may read weights early.
__device__ __forceinline__ void let_successor_start() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/// Both, as small kernels do that have nothing to prepare. The successor may start to prepare itself at once, while the
/// predecessor still runs: its own wait_for_predecessor() returns when this kernel has ended, and so its predecessor.
__device__ __forceinline__ void follow_predecessor() {
  let_successor_start();
  wait_for_predecessor();
}

/// The GPU's clock.
__device__ __forceinline__ std::uint64_t global_nanoseconds() {
  std::uint64_t now = 0;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

/// For __launch_bounds__: `blocks` blocks of `threads` threads, or the maximum that a multiprocessor of the
/// architecture holds.
constexpr int resident_at_most(int threads, int blocks) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ == 750
  constexpr int kThreads = 1024;
#elif defined(__CUDA_ARCH__) && (__CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200)
  constexpr int kThreads = 1536;
#else
  constexpr int kThreads = 2048;
#endif
  return blocks * threads <= kThreads ? blocks : kThreads / threads;
}

/// Queues a kernel that may start early. Arguments are converted to the kernel's parameters.
template <class... Parameters, class... Arguments>
void launch_kernel(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                   cudaStream_t stream, const Arguments&... arguments) {
  kernel<<<blocks, threads, shared_bytes, stream>>>(static_cast<Parameters>(arguments)...);
  DDP_CUDA(cudaGetLastError());
}

/// Clusters of `cluster` neighbouring blocks may start early.
template <class... Parameters, class... Arguments>
void launch_clusters_early(void (*kernel)(Parameters...), int cluster, dim3 blocks, int threads,
                           std::size_t shared_bytes, cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchAttribute attributes[2] = {};
  unsigned count = 0;
  if (launches_early()) {
    attributes[count].id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attributes[count++].val.programmaticStreamSerializationAllowed = 1;
  }
  if (cluster > 1) {
    attributes[count].id = cudaLaunchAttributeClusterDimension;
    attributes[count++].val.clusterDim = {static_cast<unsigned>(cluster), 1, 1};
  }
  cudaLaunchConfig_t config = {};
  config.gridDim = blocks;
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = attributes;
  config.numAttrs = count;
  DDP_CUDA(cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...));
}

template <class... Parameters, class... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                  cudaStream_t stream, const Arguments&... arguments) {
  launch_clusters_early(kernel, 1, blocks, threads, shared_bytes, stream, arguments...);
}

/// Rows that leave most of a GPU idle, so kernels start early and share the work of a row.
inline constexpr std::int64_t kFewRows = 8;

/// Queues a kernel of `rows` rows. It may start early if these are few: the pass over a token of a text has many small
/// kernels, and between them the GPU would be idle.
template <class... Parameters, class... Arguments>
void launch_rows(std::int64_t rows, void (*kernel)(Parameters...), dim3 blocks, int threads, std::size_t shared_bytes,
                 cudaStream_t stream, const Arguments&... arguments) {
  if (rows <= kFewRows) return launch_early(kernel, blocks, threads, shared_bytes, stream, arguments...);
  launch_kernel(kernel, blocks, threads, shared_bytes, stream, arguments...);
}

}  // namespace ddptrain::cuda
