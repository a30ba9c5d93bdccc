#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// One GPU. Only the thread that makes the object uses it.
class CudaDevice final : public Device {
 public:
  CudaDevice(DeviceOptions options, int device);
  ~CudaDevice() override;

  DeviceKind kind() const override { return DeviceKind::cuda; }
  std::string name() const override { return name_; }
  PeakRate peak() const override { return data_sheet_peak(name_, precision(), options().fp8); }
  std::optional<GpuProperties> gpu() const override { return gpu_; }
  int multiprocessors() const { return gpu_.multiprocessors; }
  /// Number of multiprocessors for kernels with resident blocks: those that are not left free for communication. The
  /// same in all runs with one --comm-ctas, for kernels whose results depend on it.
  int compute_multiprocessors() const { return multiprocessors() - comm_ctas(); }
  /// The same for kernels whose results do not depend on it: all, if no collectives overlap.
  int resident_multiprocessors() const { return multiprocessors() - overlapping_ctas(); }
  /// Number of clusters of two blocks that are resident beside collectives, whose blocks may each take one
  /// multiprocessor of a pair. For kernels whose results do not depend on it.
  int resident_pairs() const { return multiprocessors() / 2 - overlapping_ctas(); }

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  const void* share_host_memory(const void* host, std::size_t bytes) override;
  Buffer allocate_pinned(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void zero(void* device, std::size_t bytes, Stream stream) override;
  void convert(const Tensor& src, const Tensor& dst, Stream stream) override;

  Stream compute_stream() override { return {stream()}; }
  Stream communication_stream() override { return {communication_.stream.get()}; }
  Stream exchange_stream(std::size_t index) override;
  void wait_for(Stream later, Stream earlier) override;
  void wait_until(Stream later, const Event& event) override;
  void queue_in(Stream stream, const std::function<void()>& work) override;
  void run_concurrently(const std::function<void()>& work) override;
  void wait_concurrent() override;
  void synchronize() override;
  std::unique_ptr<Event> mark(Stream stream) override;
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override;
  std::unique_ptr<Timeline> make_timeline() override;
  std::unique_ptr<CycleCounter> make_cycle_counter() override;

  cudaStream_t stream() const { return lane_->stream.get(); }  ///< compute_stream()
  /// Memory for intermediate results of one operation on the compute stream. The next operation may overwrite them.
  cuda::Scratch& scratch() { return lane_->scratch; }

 private:
  struct ComputeLane {
    cuda::StreamHandle stream;
    cuda::Scratch scratch;
  };

  void queue_in(ComputeLane& lane, const std::function<void()>& work);
  /// UsageError if the GPU cannot run this program or does not have the requested precision.
  void check_abilities(int device) const;

  std::string name_;
  GpuProperties gpu_;
  ComputeLane compute_;
  ComputeLane concurrent_;
  ComputeLane communication_;
  std::vector<std::unique_ptr<ComputeLane>> exchanges_;
  ComputeLane* lane_ = &compute_;  ///< Its stream is the compute stream.
  bool must_wait_concurrent_ = false;
  cuda::EventHandle order_;
  std::vector<cuda::RegisteredMemory> shared_;  ///< Host memory of share_host_memory().
};

}  // namespace ddptrain
