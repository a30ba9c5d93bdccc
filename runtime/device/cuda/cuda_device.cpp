#include "runtime/device/cuda/cuda_device.h"

#include <cublasLt.h>
#include <cudnn.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
#include "runtime/core/text.h"
#include "runtime/device/queueing.h"
#include "runtime/device/tuned_choices.h"

namespace ddptrain {

namespace {

DeviceOptions checked(DeviceOptions options) {
  if (options.precision == Precision::fp64) {
    usage_error("--precision fp64: GPUs compute in fp32, tf32 or bf16. Choose one of these, or --device cpu.");
  }
  DDP_CHECK(!options.fp8 || options.precision == Precision::bf16, "products in FP8 go with bf16");
  return options;
}

constexpr int kFirstWithBf16 = 80;  // and tf32; compute capabilities
constexpr int kFirstWithFp8 = 89;

constexpr const char* kWait = "the GPU's work";

class CudaGraph final : public Graph {
 public:
  CudaGraph(cuda::GraphExecHandle exec, cudaStream_t stream, Watch& watch)
      : exec_(std::move(exec)), stream_(stream), watch_(watch) {}
  void launch() override {
    const Watch::Wait wait(watch_, Queueing::kQueueWait);
    DDP_CUDA(cudaGraphLaunch(exec_.get(), stream_));
  }

 private:
  cuda::GraphExecHandle exec_;
  cudaStream_t stream_;
  Watch& watch_;
};

class CudaEvent final : public Event {
 public:
  CudaEvent() { DDP_CUDA(cudaEventCreateWithFlags(event_.out(), cudaEventDisableTiming)); }
  void record(cudaStream_t stream) { DDP_CUDA(cudaEventRecord(event_.get(), stream)); }
  void wait(cudaStream_t stream) const { DDP_CUDA(cudaStreamWaitEvent(stream, event_.get(), 0)); }
  bool done() override {
    const cudaError_t status = cudaEventQuery(event_.get());
    if (status == cudaErrorNotReady) return false;
    DDP_CUDA(status);
    return true;
  }

 private:
  cuda::EventHandle event_;
};

void make_stream(cuda::StreamHandle& stream, bool urgent) {
  int lowest = 0;
  int highest = 0;
  DDP_CUDA(cudaDeviceGetStreamPriorityRange(&lowest, &highest));
  const int usual = std::clamp(lowest - 1, std::min(highest + 1, lowest), lowest);  // a smaller number goes first
  DDP_CUDA(cudaStreamCreateWithPriority(stream.out(), cudaStreamNonBlocking, urgent ? highest : usual));
}

/// Ends the capture of `stream` after an exception and drops the recorded work.
void abandon_capture(cudaStream_t stream) {
  cudaGraph_t graph = nullptr;
  if (cudaStreamEndCapture(stream, &graph) != cudaSuccess) cudaGetLastError();
  const cuda::GraphHandle dropped(graph);
}

}  // namespace

CudaDevice::CudaDevice(DeviceOptions options, int device) : Device(checked(options)) {
  const int count = cuda_device_count();
  if (device < 0 || device >= count) {
    usage_error(
        "GPU {} was asked for, but {} {} visible. Start at most that many ranks on this host, or use --device cpu.",
        device, count, count == 1 ? "GPU is" : "GPUs are");
  }
  DDP_CUDA(cudaSetDevice(device));
  cudaDeviceProp properties{};
  DDP_CUDA(cudaGetDeviceProperties(&properties, device));
  name_ = properties.name;
  gpu_ = current_gpu();
  check_abilities(device);
  make_stream(compute_.stream, false);
  make_stream(concurrent_.stream, false);
  make_stream(communication_.stream, true);
  DDP_CUDA(cudaEventCreateWithFlags(order_.out(), cudaEventDisableTiming));
}

void CudaDevice::check_abilities(int device) const {
  const int capability = cuda::compute_capability();
  const int code = cuda::code_version();
  const std::string gpu =
      fmt::format("GPU {} ({}, compute capability {}.{})", device, name_, capability / 10, capability % 10);
  if (code == 0) {
    usage_error(
        "{}: this program was not compiled for it. Configure on this machine with "
        "-DDDPTRAIN_CUDA_ARCHITECTURES=native, "
        "or anywhere with the preset fat, and build again; or use --device cpu.",
        gpu);
  }
  if (options().precision != Precision::fp32 && std::min(capability, code) < kFirstWithBf16) {
    usage_error("{}: no {}, which takes compute capability 8.0, and code for it. Use --precision fp32.", gpu,
                name_of(options().precision));
  }
  if (options().fp8 && capability < kFirstWithFp8) {
    usage_error("{}: no FP8, which takes compute capability 8.9. Use --precision bf16.", gpu);
  }
}

CudaDevice::~CudaDevice() {
  const Watch::Wait wait(watch(), kWait);
  const cudaError_t status = cudaDeviceSynchronize();
  if (status != cudaSuccess) spdlog::warn("the GPU's last work failed: {}", cudaGetErrorString(status));
  drop_extensions();
}

Buffer CudaDevice::allocate(std::size_t bytes) {
  DDP_CHECK(!cuda::is_capturing(compute_.stream.get()), "memory cannot be allocated while a graph is captured");
  const Watch::Wait wait(watch(), kWait);
  cuda::DeviceMemory memory = cuda::allocate_memory(std::max<std::size_t>(bytes, 1));
  DDP_CUDA(cudaMemsetAsync(memory.get(), 0, bytes, compute_.stream.get()));
  DDP_CUDA(cudaStreamSynchronize(compute_.stream.get()));
  void* data = std::exchange(*memory.out(), nullptr);
  return {data, bytes, [](void* raw) { const cuda::DeviceMemory owner(raw); }};
}

void CudaDevice::copy_to_host(void* host, const void* device, std::size_t bytes) {
  synchronize();
  const Watch::Wait wait(watch(), kWait);
  copy(host, device, bytes, {compute_.stream.get()});
  DDP_CUDA(cudaStreamSynchronize(compute_.stream.get()));
}

void CudaDevice::copy_to_device(void* device, const void* host, std::size_t bytes) {
  synchronize();
  const Watch::Wait wait(watch(), kWait);
  copy(device, host, bytes, {compute_.stream.get()});
  DDP_CUDA(cudaStreamSynchronize(compute_.stream.get()));
}

const void* CudaDevice::share_host_memory(const void* host, std::size_t bytes) {
  void* data = const_cast<void*>(host);
  const unsigned flags = cudaHostRegisterMapped | cudaHostRegisterReadOnly;
  if (cudaHostRegister(data, bytes, flags) != cudaSuccess) {
    cudaGetLastError();
    return nullptr;
  }
  shared_.emplace_back(data);
  void* device = nullptr;
  DDP_CUDA(cudaHostGetDevicePointer(&device, data, 0));
  return device;
}

/// With unified addressing, kernels of all GPUs use the same address as the host, whatever the flags are.
Buffer CudaDevice::allocate_pinned(std::size_t bytes) {
  const Watch::Wait wait(watch(), kWait);
  void* data = nullptr;
  const cudaError_t status = cudaHostAlloc(&data, std::max<std::size_t>(bytes, 1), cudaHostAllocDefault);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    throw OutOfMemory(fmt::format("{} of pinned host memory were asked for, and cannot be had; {} are free on the host",
                                  size_text(bytes), size_text(pinnable_host_memory())));
  }
  DDP_CUDA(status);
  std::memset(data, 0, bytes);
  return {data, bytes, [](void* raw) {
            const cudaError_t status = cudaFreeHost(raw);
            if (status != cudaSuccess) spdlog::warn("cudaFreeHost failed: {}", cudaGetErrorString(status));
          }};
}

/// The addresses tell which side is the host's.
void CudaDevice::copy(void* to, const void* from, std::size_t bytes, Stream stream) {
  if (bytes == 0) return;
  DDP_CUDA(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, static_cast<cudaStream_t>(stream.handle)));
}

void CudaDevice::zero(void* device, std::size_t bytes, Stream stream) {
  DDP_CUDA(cudaMemsetAsync(device, 0, bytes, static_cast<cudaStream_t>(stream.handle)));
}

void CudaDevice::wait_for(Stream later, Stream earlier) {
  if (later.handle == earlier.handle) return;
  // One event is enough: a wait refers to the event's record at the time of the call.
  DDP_CUDA(cudaEventRecord(order_.get(), static_cast<cudaStream_t>(earlier.handle)));
  DDP_CUDA(cudaStreamWaitEvent(static_cast<cudaStream_t>(later.handle), order_.get(), 0));
}

void CudaDevice::queue_in(ComputeLane& lane, const std::function<void()>& work) {
  struct Restored {
    ComputeLane*& lane;
    ComputeLane* before;
    ~Restored() { lane = before; }
  };
  const Restored restored{lane_, std::exchange(lane_, &lane)};
  work();
}

void CudaDevice::queue_in(Stream stream, const std::function<void()>& work) {
  std::vector<ComputeLane*> lanes = {&compute_, &concurrent_, &communication_};
  for (const auto& lane : exchanges_) lanes.push_back(lane.get());
  const auto is_it = [&](const ComputeLane* lane) { return lane->stream.get() == stream.handle; };
  const auto found = std::ranges::find_if(lanes, is_it);
  DDP_CHECK(found != lanes.end(), "work for a stream that the device does not have");
  queue_in(**found, work);
}

Stream CudaDevice::exchange_stream(std::size_t index) {
  while (exchanges_.size() <= index) {
    auto lane = std::make_unique<ComputeLane>();
    make_stream(lane->stream, true);
    exchanges_.push_back(std::move(lane));
  }
  return {exchanges_[index]->stream.get()};
}

void CudaDevice::run_concurrently(const std::function<void()>& work) {
  wait_for({concurrent_.stream.get()}, {compute_.stream.get()});
  must_wait_concurrent_ = true;
  queue_in(concurrent_, work);
  if (!cuda::is_capturing(compute_.stream.get()) || timeline() != nullptr) wait_concurrent();
}

void CudaDevice::wait_concurrent() {
  if (std::exchange(must_wait_concurrent_, false)) wait_for({compute_.stream.get()}, {concurrent_.stream.get()});
}

std::unique_ptr<Event> CudaDevice::mark(Stream stream) {
  auto event = std::make_unique<CudaEvent>();
  event->record(static_cast<cudaStream_t>(stream.handle));
  return event;
}

void CudaDevice::wait_until(Stream later, const Event& event) {
  static_cast<const CudaEvent&>(event).wait(static_cast<cudaStream_t>(later.handle));
}

void CudaDevice::synchronize() {
  const Watch::Wait wait(watch(), kWait);
  DDP_CUDA(cudaStreamSynchronize(compute_.stream.get()));
  DDP_CUDA(cudaStreamSynchronize(communication_.stream.get()));
  for (const auto& lane : exchanges_) DDP_CUDA(cudaStreamSynchronize(lane->stream.get()));
  watch().all_finished();
}

std::unique_ptr<Graph> CudaDevice::capture(const std::function<void()>& work) {
  DDP_CUDA(cudaStreamBeginCapture(compute_.stream.get(), cudaStreamCaptureModeThreadLocal));
  try {
    work();
  } catch (...) {
    abandon_capture(compute_.stream.get());
    must_wait_concurrent_ = false;
    throw;
  }
  cuda::GraphHandle graph;
  DDP_CUDA(cudaStreamEndCapture(compute_.stream.get(), graph.out()));
  cuda::GraphExecHandle exec;
  DDP_CUDA(cudaGraphInstantiate(exec.out(), graph.get(), cudaGraphInstantiateFlagUseNodePriority));
  DDP_CUDA(cudaGraphUpload(exec.get(), compute_.stream.get()));
  return std::make_unique<CudaGraph>(std::move(exec), compute_.stream.get(), watch());
}

std::unique_ptr<Device> make_cuda_device(DeviceOptions options, int device) {
  return std::make_unique<CudaDevice>(options, device);
}

std::size_t free_gpu_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  DDP_CUDA(cudaMemGetInfo(&free, &total));
  return free;
}

int cuda_device_count() {
  int count = 0;
  if (cudaGetDeviceCount(&count) == cudaSuccess) return count;
  cudaGetLastError();  // a missing driver or device is not an error
  return 0;
}

GpuProperties current_gpu() {
  if (cuda_device_count() == 0) return {};
  int device = 0;
  GpuProperties gpu;
  DDP_CUDA(cudaGetDevice(&device));
  DDP_CUDA(cudaDeviceGetAttribute(&gpu.multiprocessors, cudaDevAttrMultiProcessorCount, device));
  gpu.capability = cuda::compute_capability();
  gpu.warpgroups = cuda::multiplies_by_warpgroups();
  gpu.shared_memory = cuda::shared_memory_limit();
  return gpu;
}

bool cuda_has_bf16() {
  return cuda_device_count() == 0 || std::min(cuda::compute_capability(), cuda::code_version()) >= kFirstWithBf16;
}

std::string cuda_pci_bus_id(int device) {
  char id[32];
  DDP_CUDA(cudaDeviceGetPCIBusId(id, sizeof(id), device));
  return id;
}

bool cuda_can_access_peer(int device, int peer) {
  int can_access = 0;
  DDP_CUDA(cudaDeviceCanAccessPeer(&can_access, device, peer));
  return can_access != 0;
}

bool built_with_cuda() { return true; }

std::string cuda_version() {
  int version = 0;
  DDP_CUDA(cudaRuntimeGetVersion(&version));
  return fmt::format("{}.{}", version / 1000, version % 1000 / 10);
}

std::string cudnn_version() {
  const std::size_t version = cudnnGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string cublas_version() {
  const std::size_t version = cublasLtGetVersion();
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace ddptrain
