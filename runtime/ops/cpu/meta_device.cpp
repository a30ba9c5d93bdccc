#include "runtime/ops/meta_device.h"

#include <sys/mman.h>

#include <memory>
#include <optional>

#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {

namespace {

class MetaDevice final : public CpuDevice {
 public:
  MetaDevice(const DeviceOptions& options, DeviceKind kind) : CpuDevice(options), described_(kind) {
    if (kind == DeviceKind::cuda) gpu_ = current_gpu();
  }

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail("there is no address space for {} bytes", bytes);
    return {data, bytes, [bytes](void* memory) { munmap(memory, bytes); }};
  }
  void copy_to_device(void*, const void*, std::size_t) override {}
  void copy(void*, const void*, std::size_t, Stream) override {}
  bool has_own_memory() const override { return described_ != DeviceKind::cpu; }
  std::optional<GpuProperties> gpu() const override { return gpu_; }

 private:
  DeviceKind described_;
  std::optional<GpuProperties> gpu_;
};

}  // namespace

std::unique_ptr<Device> make_meta_device(DeviceOptions options, DeviceKind kind) {
  options.threads = 1;
  return std::make_unique<MetaDevice>(options, kind);
}

}  // namespace ddptrain
