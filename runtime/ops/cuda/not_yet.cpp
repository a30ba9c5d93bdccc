#include "runtime/core/error.h"
#include "runtime/ops/cached_attention.h"

// Families that have no kernels yet: a line per family.

namespace ddptrain {

namespace {

[[noreturn]] void not_yet(const char* operation) {
  usage_error("{}: not available on GPUs yet. Give --device cpu.", operation);
}

}  // namespace

std::unique_ptr<CachedAttentionOps> CachedAttentionOps::on_cuda(Device&) { not_yet("generation of text"); }

}  // namespace ddptrain
