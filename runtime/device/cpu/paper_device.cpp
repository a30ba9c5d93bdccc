#include <sys/mman.h>

#include "runtime/core/error.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {

namespace {

class PaperDevice final : public CpuDevice {
 public:
  PaperDevice(const DeviceOptions& options, DeviceKind kind) : CpuDevice(options), described_(kind) {}

  using Device::allocate;
  Buffer allocate(std::size_t bytes) override {
    if (bytes == 0) return {};
    void* data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) fail("there is no address space for {} bytes", bytes);
    return {data, bytes, [bytes](void* memory) { munmap(memory, bytes); }};
  }
  void copy_to_device(void*, const void*, std::size_t) override {}
  Fp8Scale* make_scale(DType) override { return nullptr; }
  bool has_own_memory() const override { return described_ != DeviceKind::cpu; }

 private:
  DeviceKind described_;
};

}  // namespace

std::unique_ptr<Device> make_paper_device(DeviceOptions options, DeviceKind kind) {
  options.threads = 1;
  return std::make_unique<PaperDevice>(options, kind);
}

}  // namespace ddptrain
