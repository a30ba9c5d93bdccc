#pragma once

#include <memory>
#include <optional>
#include <string>

namespace ddptrain {

/// NVIDIA's management library, loaded at run time, so that programs also start on machines without a driver. Its calls
/// are found by name and declared where they are used. Its calls are safe from several threads.
class NvmlLibrary {
 public:
  static constexpr int kSuccess = 0;  ///< Result of a successful call.

  static std::unique_ptr<NvmlLibrary> open();  ///< Null: there is no driver.
  ~NvmlLibrary();
  NvmlLibrary(const NvmlLibrary&) = delete;
  NvmlLibrary& operator=(const NvmlLibrary&) = delete;

  /// False: this version of the library has no such call.
  template <class Function>
  bool find(const char* name, Function*& function) const {
    function = reinterpret_cast<Function*>(symbol(name));
    return function != nullptr;
  }

 private:
  NvmlLibrary(void* library, int (*shutdown)()) : library_(library), shutdown_(shutdown) {}
  void* symbol(const char* name) const;

  void* library_;
  int (*shutdown_)();
};

/// A GPU that NVML knows.
class NvmlGpu {
 public:
  static std::optional<NvmlGpu> open(const std::string& pci_bus_id);  ///< Nothing: NVML knows no such GPU.

  std::string name() const;  ///< "unknown" if NVML does not say.
  /// The value that the call `name` writes for this GPU. Nothing if the call fails or does not exist.
  template <class Value, class... Arguments>
  std::optional<Value> get(const char* name, Arguments... which) const {
    int (*call)(void*, Arguments..., Value*) = nullptr;
    Value value{};
    if (!library_->find(name, call) || call(gpu_, which..., &value) != NvmlLibrary::kSuccess) return std::nullopt;
    return value;
  }

 private:
  std::shared_ptr<NvmlLibrary> library_;
  void* gpu_ = nullptr;
};

}  // namespace ddptrain
