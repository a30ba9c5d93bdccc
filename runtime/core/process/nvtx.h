#pragma once

namespace ddptrain {

/// A named range on the timeline of NVIDIA's profilers, from construction to destruction; nothing where NVTX is absent.
class NvtxRange {
 public:
  explicit NvtxRange(const char* name);
  ~NvtxRange();
  NvtxRange(const NvtxRange&) = delete;
  NvtxRange& operator=(const NvtxRange&) = delete;
};

}  // namespace ddptrain
