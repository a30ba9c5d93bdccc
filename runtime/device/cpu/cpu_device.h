#pragma once

#include <cstdint>
#include <functional>

#include "runtime/device/device.h"

namespace ddptrain {

/// The host's processors and memory. Work is done when the call that queues it returns, except for the work of
/// set_unfinished().
class CpuDevice : public Device {
 public:
  explicit CpuDevice(DeviceOptions options);  ///< make_cpu_device() has checked the options.
  ~CpuDevice() override { drop_extensions(); }

  DeviceKind kind() const override { return DeviceKind::cpu; }
  std::string name() const override;

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override;
  void copy_to_host(void* host, const void* device, std::size_t bytes) override;
  void copy_to_device(void* device, const void* host, std::size_t bytes) override;
  const void* share_host_memory(const void* host, std::size_t) override { return host; }
  Buffer allocate_pinned(std::size_t bytes) override;
  void copy(void* to, const void* from, std::size_t bytes, Stream stream) override;
  void zero(void* device, std::size_t bytes, Stream stream) override;
  void convert(const Tensor& src, const Tensor& dst, Stream stream) override;

  Stream compute_stream() override { return {}; }
  Stream communication_stream() override { return {}; }
  void wait_for(Stream, Stream) override {}
  void wait_until(Stream, const Event&) override {}
  void synchronize() override { finish_unfinished(); }
  std::unique_ptr<Event> mark(Stream stream) override;
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }
  std::unique_ptr<Timeline> make_timeline() override;

  int threads() const { return options().threads; }
  /// Cuts [0, count) into one contiguous range per thread, always in the same way, and runs work(begin, end, thread)
  /// for each range that is not empty. The calling thread is number 0. Returns when all threads are done. Throws the
  /// exception of the thread with the lowest number.
  void parallel(std::int64_t count, const std::function<void(std::int64_t begin, std::int64_t end, int thread)>& work);
  /// Memory for intermediate results of one operation. The next call returns the same memory.
  void* scratch(std::size_t bytes);

 private:
  Buffer scratch_;
};

}  // namespace ddptrain
