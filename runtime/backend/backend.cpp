#include "runtime/backend/backend.h"

#include "runtime/backend/cnn_kernels.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::unique_ptr<CnnKernels> Backend::make_cnn_kernels(const CnnShape&, std::int64_t) { return nullptr; }

void Backend::sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) {
  fail("sum_and_update: not on this backend");
}

}  // namespace ddptrain
