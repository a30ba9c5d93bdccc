#include "runtime/core/error.h"
#include "runtime/device/device.h"
#include "runtime/device/tuned_choices.h"

namespace ddptrain {

std::unique_ptr<Device> make_cuda_device(DeviceOptions, int) {
  usage_error(
      "--device cuda: this program was built without CUDA. Use --device cpu, or configure with -DDDPTRAIN_CUDA=ON on a "
      "machine that has the CUDA toolkit and build again.");
}

int cuda_device_count() { return 0; }

GpuProperties current_gpu() { return {}; }

bool cuda_has_bf16() { return true; }

std::size_t free_gpu_memory() { return 0; }

std::string cuda_pci_bus_id(int) { return {}; }

bool cuda_can_access_peer(int, int) { return false; }

bool built_with_cuda() { return false; }

std::string cuda_version() { return {}; }

std::string cudnn_version() { return {}; }

std::string cublas_version() { return {}; }

}  // namespace ddptrain
