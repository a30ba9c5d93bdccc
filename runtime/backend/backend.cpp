#include "runtime/backend/backend.h"

#include "runtime/backend/cnn_kernels.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::unique_ptr<CnnKernels> Backend::make_cnn_kernels(const CnnShape&, std::int64_t) { return nullptr; }

void Backend::sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) {
  fail("sum_and_update: not on this backend");
}

Fp8Scale* Backend::make_scale(DType format) { fail("{} on a backend without FP8", name_of(format)); }

void Backend::to_fp8(const Tensor& x, const Tensor& y, const Tensor&, bool) {
  fail("{} to {} on a backend without FP8", name_of(x.dtype), name_of(y.dtype));
}

}  // namespace ddptrain
