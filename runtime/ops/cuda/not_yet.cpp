#include "runtime/core/error.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/grouped_attention.h"
#include "runtime/ops/rms_norm.h"

// Families that have no kernels yet: a line per family.

namespace ddptrain {

namespace {

[[noreturn]] void not_yet(const char* operation) {
  usage_error("{}: not available on GPUs yet. Give --device cpu.", operation);
}

}  // namespace

std::unique_ptr<GatedOps> GatedOps::on_cuda(Device&) { not_yet("SwiGLU"); }
std::unique_ptr<GroupedAttentionOps> GroupedAttentionOps::on_cuda(Device&) {
  not_yet("attention with rotary positions, grouped keys and values, or norms of queries and keys");
}
std::unique_ptr<RmsNormOps> RmsNormOps::on_cuda(Device&) { not_yet("RMS norm"); }

}  // namespace ddptrain
