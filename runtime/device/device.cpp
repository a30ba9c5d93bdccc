#include "runtime/device/device.h"

#include "models/cnn/cnn_kernels.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::unique_ptr<CnnKernels> Device::make_cnn_kernels(const CnnShape&, std::int64_t) { return nullptr; }

void Device::sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) {
  fail("sum_and_update: not on this device");
}

Fp8Scale* Device::make_scale(DType format) { fail("{} on a device without FP8", name_of(format)); }

void Device::to_fp8(const Tensor& x, const Tensor& y, const Tensor&, bool) {
  fail("{} to {} on a device without FP8", name_of(x.dtype), name_of(y.dtype));
}

}  // namespace ddptrain
