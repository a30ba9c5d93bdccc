#include "runtime/device/cuda/cuda_utils.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <string_view>

#include "runtime/core/error.h"
#include "runtime/core/text.h"

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

int compute_capability() {
  int device = 0;
  int major = 0;
  int minor = 0;
  DDP_CUDA(cudaGetDevice(&device));
  DDP_CUDA(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device));
  DDP_CUDA(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device));
  return 10 * major + minor;
}

int most_waiting_blocks(int ranks) {
  constexpr int kPart = 4;  // a rank may run two collectives and a fused all-reduce at a time
  if (ranks == 1) return 0;
  int device = 0;
  int multiprocessors = 0;
  DDP_CUDA(cudaGetDevice(&device));
  DDP_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, device));
  return std::max(1, multiprocessors / (kPart * ranks));
}

bool launches_early() {
  static const bool early = code_version() >= 90;
  return early;
}

bool multiplies_by_warpgroups() {
#ifdef DDPTRAIN_CODE_90A
  return compute_capability() == 90;
#else
  return false;
#endif
}

std::size_t shared_memory_limit() {
  static const std::size_t limit = [] {
    int device = 0;
    int bytes = 0;
    DDP_CUDA(cudaGetDevice(&device));
    DDP_CUDA(cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    const char* lower = std::getenv("DDPTRAIN_SHARED_MEMORY_LIMIT");
    if (lower == nullptr) return static_cast<std::size_t>(bytes);
    const std::string_view text = lower;
    std::size_t kib = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), kib);
    if (error != std::errc() || end != text.data() + text.size() || kib < 48) {
      usage_error("DDPTRAIN_SHARED_MEMORY_LIMIT={}: a number of KiB, at least 48", text);
    }
    return std::min(static_cast<std::size_t>(bytes), kib * 1024);
  }();
  return limit;
}

void reserve_shared_memory(const void* kernel, std::size_t bytes) {
  DDP_CHECK(bytes <= shared_memory_limit(), "a kernel needs {} bytes of shared memory, of which a thread block has {}",
            bytes, shared_memory_limit());
  cudaFuncAttributes now = {};
  DDP_CUDA(cudaFuncGetAttributes(&now, kernel));
  const int wanted = static_cast<int>(bytes);
  if (wanted <= now.maxDynamicSharedSizeBytes) return;
  DDP_CUDA(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, wanted));
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
