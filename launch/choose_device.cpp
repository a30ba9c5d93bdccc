#include "launch/choose_device.h"

#include "runtime/core/error.h"

namespace ddptrain {

DeviceKind choose_device(const World& world, const std::string& device, std::optional<int> given_gpus) {
  if (device == "cpu") return DeviceKind::cpu;
  const int gpus = given_gpus ? *given_gpus : cuda_device_count();
  const bool everywhere = world.min(gpus) > 0;
  if (device == "auto" && !everywhere) return DeviceKind::cpu;
  world.agree([&] {
    if (!built_with_cuda()) usage_error("--device cuda: this program was built without CUDA. Use --device cpu.");
    if (gpus == 0) usage_error("--device cuda: no GPU is visible on {}. Use --device cpu.", world.hostname());
    if (world.local_size() > gpus) {
      usage_error(
          "{} ranks on {}, but {} GPU{} there, and each rank needs its own: start at most {} per host, or add "
          "--device cpu",
          world.local_size(), world.hostname(), gpus, gpus == 1 ? "" : "s", gpus);
    }
  });
  return DeviceKind::cuda;
}

}  // namespace ddptrain
