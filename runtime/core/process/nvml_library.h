#pragma once

#include <memory>

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

}  // namespace ddptrain
