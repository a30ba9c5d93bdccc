#include <chrono>

#include "benchmarks/ddpbench/devices/gpu_copies.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/device.h"

namespace ddptrain::bench {
namespace {

constexpr long long kMostCycles = 10'000'000;  // the host cannot queue some copies behind a kernel that waits for it
constexpr std::size_t kLatencyBytes = 16;

/// Holds a stream until the host releases it.
__global__ void wait_for_host(const volatile int* go) {
  const long long start = clock64();
  while (*go == 0 && clock64() - start < kMostCycles) {
  }
}

using PinnedMemory = cuda::Handle<void*, cudaFreeHost>;

struct Gpu {
  cuda::StreamHandle stream;
  cuda::EventHandle start;
  cuda::EventHandle stop;
};

Gpu make_gpu(int device) {
  DDP_CUDA(cudaSetDevice(device));
  Gpu gpu;
  DDP_CUDA(cudaStreamCreateWithFlags(gpu.stream.out(), cudaStreamNonBlocking));
  DDP_CUDA(cudaEventCreate(gpu.start.out()));
  DDP_CUDA(cudaEventCreate(gpu.stop.out()));
  return gpu;
}

cuda::DeviceMemory allocate(int device, std::size_t bytes) {
  cuda::DeviceMemory memory;
  DDP_CUDA(cudaSetDevice(device));
  DDP_CUDA(cudaMalloc(memory.out(), bytes));
  return memory;
}

PinnedMemory allocate_pinned(std::size_t bytes) {
  PinnedMemory memory;
  DDP_CUDA(cudaHostAlloc(memory.out(), bytes, cudaHostAllocPortable));
  return memory;
}

double rate(double bytes, double seconds) { return bytes / 1e9 / seconds; }

class CudaCopies final : public GpuCopies {
 public:
  CudaCopies() : flag_(allocate_pinned(sizeof(int))) {
    for (int device = 0; device < cuda_device_count(); ++device) gpus_.push_back(make_gpu(device));
  }
  ~CudaCopies() override = default;
  CudaCopies(const CudaCopies&) = delete;
  CudaCopies& operator=(const CudaCopies&) = delete;

  int count() const override { return static_cast<int>(gpus_.size()); }

  std::string name(int gpu) const override {
    cudaDeviceProp properties{};
    DDP_CUDA(cudaGetDeviceProperties(&properties, gpu));
    return std::string(properties.name) + ", " + cuda_pci_bus_id(gpu);
  }

  bool can_access(int from, int to) const override {
    int can = from == to ? 1 : 0;
    if (from != to) DDP_CUDA(cudaDeviceCanAccessPeer(&can, from, to));
    return can != 0;
  }

  void set_peer_access(bool enabled) override {
    if (enabled == peer_access_) return;
    for (int from = 0; from < count(); ++from) {
      DDP_CUDA(cudaSetDevice(from));
      for (int to = 0; to < count(); ++to) {
        if (from == to || !can_access(from, to)) continue;
        DDP_CUDA(enabled ? cudaDeviceEnablePeerAccess(to, 0) : cudaDeviceDisablePeerAccess(to));
      }
    }
    peer_access_ = enabled;
  }

  double one_way(int from, int to, std::size_t bytes, int repeats) override {
    const auto source = allocate(from, bytes);
    const auto target = allocate(to, bytes);
    const double seconds = timed(from, [&] { copy(to, target.get(), from, source.get(), bytes, repeats, from); });
    return (from == to ? 2.0 : 1.0) * rate(static_cast<double>(bytes) * repeats, seconds);
  }

  double both_ways(int a, int b, std::size_t bytes, int repeats) override {
    const auto source_a = allocate(a, bytes);
    const auto target_a = allocate(a, bytes);
    const auto source_b = allocate(b, bytes);
    const auto target_b = allocate(b, bytes);
    Gpu other = make_gpu(b);
    const double seconds = timed(a, [&] {
      Gpu& first = gpus_[a];
      DDP_CUDA(cudaStreamWaitEvent(other.stream.get(), first.start.get(), 0));
      copy(b, target_b.get(), a, source_a.get(), bytes, repeats, a);
      DDP_CUDA(cudaSetDevice(b));
      for (int i = 0; i < repeats; ++i) {
        DDP_CUDA(cudaMemcpyPeerAsync(target_a.get(), a, source_b.get(), b, bytes, other.stream.get()));
      }
      DDP_CUDA(cudaEventRecord(other.stop.get(), other.stream.get()));
      DDP_CUDA(cudaSetDevice(a));
      DDP_CUDA(cudaStreamWaitEvent(first.stream.get(), other.stop.get(), 0));
    });
    DDP_CUDA(cudaStreamSynchronize(other.stream.get()));
    return (a == b ? 2.0 : 1.0) * rate(2.0 * static_cast<double>(bytes) * repeats, seconds);
  }

  Latency latency(int from, int to, int repeats) override {
    const auto source = allocate(from, kLatencyBytes);
    const auto target = allocate(to, kLatencyBytes);
    double queued = 0.0;
    const double seconds = timed(from, [&] {
      const auto begin = std::chrono::steady_clock::now();
      copy(to, target.get(), from, source.get(), kLatencyBytes, repeats, from);
      queued = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    });
    return {1e6 * seconds / repeats, 1e6 * queued / repeats};
  }

  HostRates host(int gpu, std::size_t bytes, int repeats) override {
    const auto device_in = allocate(gpu, bytes);
    const auto device_out = allocate(gpu, bytes);
    const auto host_in = allocate_pinned(bytes);
    const auto host_out = allocate_pinned(bytes);
    const Gpu other = make_gpu(gpu);
    const auto to_device = [&](cudaStream_t stream) {
      for (int i = 0; i < repeats; ++i) {
        DDP_CUDA(cudaMemcpyAsync(device_in.get(), host_in.get(), bytes, cudaMemcpyHostToDevice, stream));
      }
    };
    const auto from_device = [&](cudaStream_t stream) {
      for (int i = 0; i < repeats; ++i) {
        DDP_CUDA(cudaMemcpyAsync(host_out.get(), device_out.get(), bytes, cudaMemcpyDeviceToHost, stream));
      }
    };
    const cudaStream_t stream = gpus_[gpu].stream.get();
    const double total = static_cast<double>(bytes) * repeats;
    HostRates rates;
    rates.to_device = rate(total, timed(gpu, [&] { to_device(stream); }));
    rates.from_device = rate(total, timed(gpu, [&] { from_device(stream); }));
    rates.both = rate(2.0 * total, timed(gpu, [&] {
                        DDP_CUDA(cudaStreamWaitEvent(other.stream.get(), gpus_[gpu].start.get(), 0));
                        to_device(stream);
                        from_device(other.stream.get());
                        DDP_CUDA(cudaEventRecord(other.stop.get(), other.stream.get()));
                        DDP_CUDA(cudaStreamWaitEvent(stream, other.stop.get(), 0));
                      }));
    return rates;
  }

 private:
  /// Seconds on the stream of `device` from the end of the holding kernel to the end of the work that `queue` queues.
  template <class Queue>
  double timed(int device, Queue queue) {
    Gpu& gpu = gpus_[device];
    auto* go = static_cast<volatile int*>(flag_.get());
    *go = 0;
    DDP_CUDA(cudaSetDevice(device));
    DDP_CUDA(cudaStreamSynchronize(gpu.stream.get()));
    wait_for_host<<<1, 1, 0, gpu.stream.get()>>>(const_cast<const volatile int*>(go));
    DDP_CUDA(cudaGetLastError());
    DDP_CUDA(cudaEventRecord(gpu.start.get(), gpu.stream.get()));
    queue();
    DDP_CUDA(cudaEventRecord(gpu.stop.get(), gpu.stream.get()));
    *go = 1;
    DDP_CUDA(cudaStreamSynchronize(gpu.stream.get()));
    float milliseconds = 0.0f;
    DDP_CUDA(cudaEventElapsedTime(&milliseconds, gpu.start.get(), gpu.stop.get()));
    return 1e-3 * milliseconds;
  }

  void copy(int to, void* target, int from, const void* source, std::size_t bytes, int repeats, int stream_of) {
    for (int i = 0; i < repeats; ++i) {
      DDP_CUDA(cudaMemcpyPeerAsync(target, to, source, from, bytes, gpus_[stream_of].stream.get()));
    }
  }

  PinnedMemory flag_;
  std::vector<Gpu> gpus_;
  bool peer_access_ = false;
};

}  // namespace

std::unique_ptr<GpuCopies> make_gpu_copies() {
  if (cuda_device_count() == 0) return nullptr;
  return std::make_unique<CudaCopies>();
}

}  // namespace ddptrain::bench
