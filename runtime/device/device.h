#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <typeindex>
#include <utility>
#include <vector>

#include "runtime/core/process/watch.h"
#include "runtime/core/tensor.h"
#include "runtime/device/buffer.h"
#include "runtime/device/cycle_counter.h"
#include "runtime/device/gpu_properties.h"
#include "runtime/device/peak_rate.h"
#include "runtime/device/timeline.h"

namespace ddptrain {

enum class DeviceKind : std::uint8_t { cpu, cuda };

/// View of a queue of device work (a CUDA stream). On the CPU, work runs when it is queued, and the handle is null.
struct Stream {
  void* handle = nullptr;
};

/// A point in a stream.
class Event {
 public:
  virtual ~Event() = default;
  virtual bool done() = 0;  ///< Whether the device has passed it. Does not wait. Error if earlier work has failed.
};

/// A recorded sequence of device work that can be launched again and again. Launching does not wait.
class Graph {
 public:
  virtual ~Graph() = default;
  virtual void launch() = 0;  ///< On the compute stream.
};

struct DeviceOptions {
  Precision precision = Precision::fp32;
  bool fused = true;  ///< Use fused kernels if there are some for the model and precision.
  int threads = 1;    ///< CPU only.
  /// Number of multiprocessors that kernels leave free, so that collectives overlap with them.
  int comm_ctas = 0;
  int ranks = 1;  ///< Number of ranks that share the device.
  /// GPUs: time a few algorithms for each new shape of a GEMM and keep the fastest. Another run may choose another
  /// algorithm and round differently. Without tuning, the same run gives the same bits.
  bool tune = false;
  /// GPUs with bf16: linear layers multiply in FP8 if the model supports it. See QuantisationOps.
  bool fp8 = false;
};

/// One device: its memory, its streams, and objects that exist once per device, such as the operations of runtime/ops/.
/// This class knows no operation. Not thread-safe.
class Device {
 public:
  virtual ~Device() = default;

  virtual DeviceKind kind() const = 0;
  virtual std::string name() const = 0;
  const DeviceOptions& options() const { return options_; }
  Precision precision() const { return options_.precision; }
  DType dtype() const { return compute_dtype(options_.precision); }
  virtual PeakRate peak() const { return {}; }  ///< At precision(), and in FP8 with options().fp8.
  /// Properties of the GPU, or of the GPU that a meta device describes. Empty for a CPU.
  virtual std::optional<GpuProperties> gpu() const { return std::nullopt; }

  /// Records every wait of the host for the device, because the device may wait for other ranks.
  Watch& watch() const { return *watch_; }
  void set_watch(std::shared_ptr<Watch> watch) { watch_ = std::move(watch); }

  // --- memory -------------------------------------------------------------------------------------------------
  virtual Buffer allocate(std::size_t bytes) = 0;  ///< Zeroed.
  Buffer allocate(DType dtype, const Shape& shape) {
    return allocate(static_cast<std::size_t>(element_count(shape)) * size_of(dtype));
  }
  /// Both wait for earlier work and return when the copy is done. `device` may also be pinned host memory.
  virtual void copy_to_host(void* host, const void* device, std::size_t bytes) = 0;
  virtual void copy_to_device(void* device, const void* host, std::size_t bytes) = 0;
  /// Whether the device's memory is not the host's, so that data sets must be copied to it.
  virtual bool has_own_memory() const { return kind() != DeviceKind::cpu; }
  /// An address at which operations read host memory without a copy. It is valid as long as the device and the memory
  /// live. Null if the device cannot read host memory.
  virtual const void* share_host_memory(const void* host, std::size_t bytes) = 0;
  /// Host memory (zeroed) that the device's operations read and write as they do device memory, on GPUs at the rate of
  /// their link to the host. copy() between it and device memory runs at full rate and overlaps with other work.
  virtual Buffer allocate_pinned(std::size_t bytes) = 0;
  /// Queued on `stream`. Either side may be pinned host memory. If both are, the host may wait for the copy.
  virtual void copy(void* to, const void* from, std::size_t bytes, Stream stream) = 0;
  virtual void zero(void* device, std::size_t bytes, Stream stream) = 0;  ///< Device memory, or pinned host memory.
  /// dst = src with conversion between f64, f32 and bf16 (round to nearest even).
  virtual void convert(const Tensor& src, const Tensor& dst, Stream stream) = 0;

  // --- order --------------------------------------------------------------------------------------------------
  virtual Stream compute_stream() = 0;
  virtual Stream communication_stream() = 0;  ///< Higher priority than compute.
  /// Stream number `index` for exchanges that overlap with each other and with the communication stream. Made at the
  /// first call. Not for NCCL's kernels: see in_communication_stream().
  virtual Stream exchange_stream(std::size_t /*index*/) { return communication_stream(); }
  /// Work queued on `later` from now on starts after everything queued on `earlier` so far. The host does not wait.
  virtual void wait_for(Stream later, Stream earlier) = 0;
  /// The same for everything before `event`, which mark() returned.
  virtual void wait_until(Stream later, const Event& event) = 0;
  /// Calls `work` with the communication stream. Work queued there starts after everything queued on the compute stream
  /// so far. The compute stream's later work waits for it. Collectives of several communicators share this stream:
  /// NCCL's kernels wait for other ranks, and in two branches of a CUDA graph they could block each other.
  void in_communication_stream(const std::function<void(Stream)>& work);
  /// Calls `work`. Meanwhile, compute_stream() is `stream`, one of this device, so that operations are queued there.
  virtual void queue_in(Stream /*stream*/, const std::function<void()>& work) { work(); }
  /// Calls `work`. In a captured graph, its work on compute_stream() starts after earlier work and overlaps with work
  /// that is queued from now on until wait_concurrent(). Outside a graph, and if there is a timeline(), there is no
  /// overlap.
  virtual void run_concurrently(const std::function<void()>& work) { work(); }
  virtual void wait_concurrent() {}
  /// The end of the work that is queued on `stream` so far.
  virtual std::unique_ptr<Event> mark(Stream stream) = 0;
  virtual void synchronize() = 0;  ///< The host waits for all streams; reports errors of earlier work.
  /// Records the work that `work` queues on compute_stream(), and on streams that wait for it and are joined back,
  /// without running it. Null if the device has no graphs.
  virtual std::unique_ptr<Graph> capture(const std::function<void()>& work) = 0;
  virtual std::unique_ptr<Timeline> make_timeline() = 0;
  virtual std::unique_ptr<CycleCounter> make_cycle_counter() { return nullptr; }  ///< Null if this is no GPU.
  /// Runs `work`. `timeline` records the spans that `work` opens.
  void record(Timeline& timeline, const std::function<void()>& work);
  Timeline* timeline() const { return timeline_; }  ///< Null outside of record().
  /// Long operations on CPUs call `progress` now and then, so that messages make progress. An exception from `progress`
  /// ends the operation.
  void set_progress(std::function<void()> progress) { progress_ = std::move(progress); }
  void progress() const {
    if (progress_) progress_();
  }

  /// Number of multiprocessors that kernels leave free now.
  int comm_ctas() const { return whole_ ? 0 : options_.comm_ctas; }
  /// Whether collectives run while other kernels compute. If not, kernels whose results do not depend on the number of
  /// their thread blocks leave no multiprocessors free. The others do, so that bits do not depend on the path of
  /// gradients.
  void set_collectives_overlap(bool overlap) { collectives_overlap_ = overlap; }
  int overlapping_ctas() const { return collectives_overlap_ ? comm_ctas() : 0; }

  /// CPUs: `finish` does queued work that waits for messages of other ranks. An empty function means that there is no
  /// such work. Waiting for the device calls `finish`, and so does queueing work on the same memory. It is called once.
  void set_unfinished(std::function<void()> finish) { unfinished_ = std::move(finish); }
  void finish_unfinished() {
    if (const auto finish = std::exchange(unfinished_, nullptr)) finish();
  }

  // --- extensions -----------------------------------------------------------------------------------------------
  /// The device's object of type T, such as a family of operations (runtime/ops/). The first call makes it by
  /// T::make(*this). It lives as long as the device's streams.
  template <class T>
  T& get() {
    for (const auto& [type, object] : extensions_) {
      if (type == std::type_index(typeid(T))) return *static_cast<T*>(object.get());
    }
    return attach<T>(T::make(*this));
  }

 protected:
  explicit Device(DeviceOptions options) : options_(options) {}
  template <class T>
  T& attach(std::shared_ptr<T> object) {
    return *static_cast<T*>(extensions_.emplace_back(typeid(T), std::move(object)).second.get());
  }
  /// Destroys extensions, the newest first. Destructors of devices call it first, because extensions may use all of the
  /// device.
  void drop_extensions() {
    while (!extensions_.empty()) extensions_.pop_back();
  }

 private:
  friend class WholeDevice;

  DeviceOptions options_;
  std::shared_ptr<Watch> watch_ = std::make_shared<Watch>();
  std::function<void()> progress_;
  std::function<void()> unfinished_;
  Timeline* timeline_ = nullptr;
  bool whole_ = false;
  bool collectives_overlap_ = true;
  std::vector<std::pair<std::type_index, std::shared_ptr<void>>> extensions_;
};

/// While the object lives, kernels that are queued or captured leave no multiprocessors free.
class WholeDevice {
 public:
  explicit WholeDevice(Device& device) : device_(device), before_(std::exchange(device.whole_, true)) {}
  ~WholeDevice() { device_.whole_ = before_; }
  WholeDevice(const WholeDevice&) = delete;
  WholeDevice& operator=(const WholeDevice&) = delete;

 private:
  Device& device_;
  bool before_;
};

std::unique_ptr<Device> make_cpu_device(DeviceOptions options);
/// `device` is an index among the visible GPUs. UsageError in a build without CUDA.
std::unique_ptr<Device> make_cuda_device(DeviceOptions options, int device);
/// Bytes that are free on the current GPU; 0 in a build without CUDA.
std::size_t free_gpu_memory();
int cuda_device_count();  ///< 0 in a build without CUDA or on a machine without a GPU.
/// Properties of the current GPU. Without a GPU, the default of GpuProperties.
GpuProperties current_gpu();
/// Whether the current GPU and the code compiled for it support bf16 and tf32. True without a GPU.
bool cuda_has_bf16();
/// bf16 on GPUs that have it, else fp32.
inline Precision default_precision(DeviceKind kind) {
  return kind == DeviceKind::cuda && cuda_has_bf16() ? Precision::bf16 : Precision::fp32;
}
/// Such as 0000:1b:00.0. Empty in a build without CUDA.
std::string cuda_pci_bus_id(int device);
/// Whether a GPU can read and write another GPU's memory directly. False in a build without CUDA.
bool cuda_can_access_peer(int device, int peer);
bool built_with_cuda();
std::string cuda_version();  ///< The runtime library's version. Needs no GPU. Empty in a build without CUDA.
std::string cudnn_version();

}  // namespace ddptrain
