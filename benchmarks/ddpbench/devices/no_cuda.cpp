#include "benchmarks/ddpbench/collectives/check_pattern.h"
#include "benchmarks/ddpbench/devices/gpu_copies.h"
#include "benchmarks/ddpbench/devices/stream_clock.h"
#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

[[noreturn]] void not_in_this_build() { usage_error("this program was built without CUDA; use --device cpu"); }

}  // namespace

std::unique_ptr<GpuCopies> make_gpu_copies() { return nullptr; }

namespace gpu {

void fill_pattern(const Tensor&, int) { not_in_this_build(); }
std::uint64_t count_wrong(const Tensor&, const Expected&) { not_in_this_build(); }
std::unique_ptr<StreamClock> make_stream_clock(std::size_t) { not_in_this_build(); }

}  // namespace gpu

}  // namespace ddptrain::bench
