#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <utility>
#include <vector>

namespace ddptrain::cuda {

/// Throws Error naming call, place and reason.
[[noreturn]] void fail_call(const char* call, const char* file, int line, const char* reason);
/// Throws Error with `message` unless `condition` holds. For .cu files: nvcc does not get along with fmt in C++20.
void require(bool condition, const char* message);
/// For destructors, which must not throw.
void log_failed_release(const char* reason);

/// Throws OutOfMemory: `what` found no memory. Names how much the current device has left.
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

/// Owner of a handle of a C library; move-only.
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
  /// For the calls that create handles; the handle must be empty.
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
/// The architecture for which the kernels that run on the current device were compiled, as compute_capability(); lower
/// if the driver translates older code. 0 if this program has none for the device.
int code_version();
/// Whether kernels may start before their predecessor ends: their code must wait in time, which takes 9.0.
bool launches_early();
/// Thread blocks that a kernel may have if it waits for other ranks, of which `ranks` share the current device: their
/// kernels run at the same time only if all blocks find room, and they must leave room for the kernels that they wait
/// for. 0: any number, because each rank has its own device.
int most_waiting_blocks(int ranks);
/// Whether the current device runs code of 9.0a.
bool multiplies_by_warpgroups();

/// Shared memory that a thread block may have on the current device, bytes. The environment variable
/// DDPTRAIN_SHARED_MEMORY_LIMIT (KiB) lowers it, so that a large GPU runs the kernels of a smaller one.
std::size_t shared_memory_limit();
/// Lets thread blocks of `kernel` have `bytes` of dynamic shared memory. Error if that is more than the limit.
void reserve_shared_memory(const void* kernel, std::size_t bytes);
template <class... Parameters>
void reserve_shared_memory(void (*kernel)(Parameters...), std::size_t bytes) {
  reserve_shared_memory(reinterpret_cast<const void*>(kernel), bytes);
}

/// Device memory for intermediate results of one stream, grown on demand. What was handed out before stays allocated,
/// because captured graphs may still use it.
class Scratch {
 public:
  /// At least `bytes`, aligned to 256; the next call hands out the same memory. Throws Error if it would have to
  /// grow while `stream` is being captured.
  void* reserve(std::size_t bytes, cudaStream_t stream);
  template <class T>
  T* reserve_elements(std::size_t count, cudaStream_t stream) {
    return static_cast<T*>(reserve(count * sizeof(T), stream));
  }

 private:
  std::vector<DeviceMemory> blocks_;
  std::size_t bytes_ = 0;
};

/// Lays out arrays in one piece of memory, 256 bytes apart at least: once over null to learn the size, once for good.
class Pieces {
 public:
  explicit Pieces(void* memory) : memory_(static_cast<char*>(memory)) {}

  template <class T>
  T* take(std::size_t count) {
    char* piece = memory_ + bytes_;
    bytes_ += (count * sizeof(T) + 255) / 256 * 256;
    return reinterpret_cast<T*>(piece);
  }
  std::size_t bytes() const { return bytes_; }

 private:
  char* memory_;
  std::size_t bytes_ = 0;
};

}  // namespace ddptrain::cuda

/// Throws Error unless the call of the CUDA runtime succeeds.
#define DDP_CUDA(call) ::ddptrain::cuda::check((call), #call, __FILE__, __LINE__)
