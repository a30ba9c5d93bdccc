#include "runtime/device/cuda/cuda_utils.h"

#include <spdlog/spdlog.h>

#include <algorithm>

#include "runtime/core/error.h"
#include "runtime/core/out_of_memory.h"

namespace ddptrain::cuda {

void fail_call(const char* call, const char* file, int line, const char* reason) {
  fail("{}:{}: {} failed: {}", file, line, call, reason);
}

void fail_allocation(const char* what) {
  cudaGetLastError();
  std::size_t free = 0;
  std::size_t total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) cudaGetLastError();
  throw OutOfMemory(
      fmt::format("{}: the GPU is out of memory; {} of {} are free", what, size_text(free), size_text(total)));
}

void require(bool condition, const char* message) {
  if (!condition) throw Error(message);
}

void log_failed_release(const char* reason) { spdlog::warn("releasing a GPU resource failed: {}", reason); }

const char* reason_of(cudaError_t status) { return cudaGetErrorString(status); }

bool is_capturing(cudaStream_t stream) {
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  DDP_CUDA(cudaStreamIsCapturing(stream, &status));
  return status != cudaStreamCaptureStatusNone;
}

DeviceMemory allocate_memory(std::size_t bytes) {
  DeviceMemory memory;
  const cudaError_t status = cudaMalloc(memory.out(), bytes);
  if (status == cudaErrorMemoryAllocation) fail_allocation(fmt::format("{} were asked for", size_text(bytes)).c_str());
  check(status, "cudaMalloc", __FILE__, __LINE__);
  return memory;
}

void* Scratch::reserve(std::size_t bytes, cudaStream_t stream) {
  if (!blocks_.empty() && bytes <= bytes_) return blocks_.back().get();
  DDP_CHECK(!is_capturing(stream), "an operation of this size must run once before it is captured in a graph");
  const std::size_t grown = std::max({bytes, 2 * bytes_, std::size_t{1} << 16});
  blocks_.push_back(allocate_memory(grown));
  bytes_ = grown;
  return blocks_.back().get();
}

}  // namespace ddptrain::cuda
