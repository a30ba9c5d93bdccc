#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

#include "runtime/device/cuda/pieces.h"

namespace ddptrain::cuda {

/// Throws Error with call, place and reason.
[[noreturn]] void fail_call(const char* call, const char* file, int line, const char* reason);
/// Throws Error with `message` unless `condition` holds. For .cu files, because nvcc cannot compile fmt in C++20.
void require(bool condition, const char* message);
/// For destructors, which must not throw.
void log_failed_release(const char* reason);

/// Throws OutOfMemory for `what`. The message has the free memory of the current device.
[[noreturn]] void fail_allocation(const char* what);

inline void check(cudaError_t status, const char* call, const char* file, int line) {
  if (status == cudaErrorMemoryAllocation) fail_allocation(call);
  if (status != cudaSuccess) fail_call(call, file, line, cudaGetErrorString(status));
}
const char* reason_of(cudaError_t status);
/// For the other libraries. Success is 0 in all of them.
template <class Status>
const char* reason_of(Status) {
  return "a library handle";
}

/// Owns a handle of a C library. Move-only.
template <class T, auto kRelease>
class Handle {
 public:
  Handle() = default;
  explicit Handle(T raw) : raw_(raw) {}
  Handle(Handle&& other) noexcept : raw_(std::exchange(other.raw_, nullptr)) {}
  Handle& operator=(Handle&& other) noexcept {
    std::swap(raw_, other.raw_);
    return *this;
  }
  ~Handle() {
    if (raw_ == nullptr) return;
    const auto status = kRelease(raw_);
    if (static_cast<int>(status) != 0) log_failed_release(reason_of(status));
  }

  T get() const { return raw_; }
  /// For calls that create handles. The handle must be empty.
  T* out() { return &raw_; }
  explicit operator bool() const { return raw_ != nullptr; }

 private:
  T raw_ = nullptr;
};

using StreamHandle = Handle<cudaStream_t, cudaStreamDestroy>;
using EventHandle = Handle<cudaEvent_t, cudaEventDestroy>;
using GraphHandle = Handle<cudaGraph_t, cudaGraphDestroy>;
using GraphExecHandle = Handle<cudaGraphExec_t, cudaGraphExecDestroy>;
using DeviceMemory = Handle<void*, cudaFree>;
using RegisteredMemory = Handle<void*, cudaHostUnregister>;

/// Memory of the current device. Throws OutOfMemory.
DeviceMemory allocate_memory(std::size_t bytes);

bool is_capturing(cudaStream_t stream);
int compute_capability();  ///< Compute capability of the current device: 90 for 9.0.
/// The architecture of this program's code for the current device, in the form of compute_capability(). It is lower
/// than the device's if the driver translates older code. 0 if the program has no code for the device.
int code_version();
/// Whether kernels may start before their predecessor ends. Device and code need compute capability 9.0.
bool launches_early();
/// Maximum number of thread blocks of a kernel that waits for other ranks, if `ranks` ranks share the current device.
/// The ranks' kernels run at the same time only if all their blocks fit. They must also leave room for the kernels that
/// they wait for. 0: no limit, because each rank has its own device.
int most_waiting_blocks(int ranks);
/// Whether the current device runs code for 9.0a.
bool multiplies_by_warpgroups();

/// Maximum of shared memory of a thread block on the current device, in bytes. The environment variable
/// DDPTRAIN_SHARED_MEMORY_LIMIT (KiB) lowers it, so that a large GPU runs the kernels of a smaller GPU.
std::size_t shared_memory_limit();
/// Allows thread blocks of `kernel` to have `bytes` of dynamic shared memory, or more if it was allowed before:
/// captured launches may need it. Error above the limit.
void reserve_shared_memory(const void* kernel, std::size_t bytes);
template <class... Parameters>
void reserve_shared_memory(void (*kernel)(Parameters...), std::size_t bytes) {
  reserve_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

/// Device memory for intermediate results of one stream. It grows on demand. Earlier memory stays allocated, because
/// captured graphs may still use it.
class Scratch {
 public:
  /// At least `bytes` bytes, aligned to 256. The next call returns the same memory. Error if the memory would have to
  /// grow during a capture of `stream`.
  void* reserve(std::size_t bytes, cudaStream_t stream);
  template <class T>
  T* reserve_elements(std::size_t count, cudaStream_t stream) {
    return static_cast<T*>(reserve(count * sizeof(T), stream));
  }
  std::size_t bytes() const { return bytes_; }  ///< Of the memory that the last call returned.

 private:
  std::vector<DeviceMemory> blocks_;
  std::size_t bytes_ = 0;
};

}  // namespace ddptrain::cuda

/// Throws Error unless the call of the CUDA runtime succeeds.
#define DDP_CUDA(call) ::ddptrain::cuda::check((call), #call, __FILE__, __LINE__)
