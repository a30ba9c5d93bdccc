#include "runtime/core/process/profiler_range.h"

#ifdef DDPTRAIN_WITH_NVTX
#include <nvtx3/nvToolsExt.h>
#endif

namespace ddptrain {

#ifdef DDPTRAIN_WITH_NVTX
ProfilerRange::ProfilerRange(const char* name) { nvtxRangePushA(name); }
ProfilerRange::~ProfilerRange() { nvtxRangePop(); }
#else
ProfilerRange::ProfilerRange(const char*) {}
ProfilerRange::~ProfilerRange() = default;
#endif

}  // namespace ddptrain
