#include "runtime/core/process/nvml_library.h"

#include <dlfcn.h>

namespace ddptrain {

std::unique_ptr<NvmlLibrary> NvmlLibrary::open() {
  void* library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return nullptr;
  const auto init = reinterpret_cast<int (*)()>(dlsym(library, "nvmlInit_v2"));
  const auto shutdown = reinterpret_cast<int (*)()>(dlsym(library, "nvmlShutdown"));
  if (init == nullptr || shutdown == nullptr || init() != kSuccess) {
    dlclose(library);
    return nullptr;
  }
  return std::unique_ptr<NvmlLibrary>(new NvmlLibrary(library, shutdown));
}

NvmlLibrary::~NvmlLibrary() {
  shutdown_();
  dlclose(library_);
}

void* NvmlLibrary::symbol(const char* name) const { return dlsym(library_, name); }

std::optional<NvmlGpu> NvmlGpu::open(const std::string& pci_bus_id) {
  NvmlGpu gpu;
  gpu.library_ = NvmlLibrary::open();
  int (*handle_by_bus_id)(const char*, void**) = nullptr;
  if (gpu.library_ == nullptr || !gpu.library_->find("nvmlDeviceGetHandleByPciBusId_v2", handle_by_bus_id) ||
      handle_by_bus_id(pci_bus_id.c_str(), &gpu.gpu_) != NvmlLibrary::kSuccess) {
    return std::nullopt;
  }
  return gpu;
}

std::string NvmlGpu::name() const {
  char text[96] = "";
  int (*call)(void*, char*, unsigned) = nullptr;
  const bool known =
      library_->find("nvmlDeviceGetName", call) && call(gpu_, text, sizeof(text)) == NvmlLibrary::kSuccess;
  return known ? text : "unknown";
}

}  // namespace ddptrain
