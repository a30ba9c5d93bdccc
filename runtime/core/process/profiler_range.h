#pragma once

namespace ddptrain {

/// A named range of this thread's work in profilers such as Nsight Systems (NVTX), while the object lives. Ranges nest.
/// Without a profiler it costs a few nanoseconds, and in a build without CUDA nothing.
class [[nodiscard]] ProfilerRange {
 public:
  explicit ProfilerRange(const char* name);
  ~ProfilerRange();
  ProfilerRange(const ProfilerRange&) = delete;
  ProfilerRange& operator=(const ProfilerRange&) = delete;
};

}  // namespace ddptrain
