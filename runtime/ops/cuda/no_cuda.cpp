#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/cached_attention.h"
#include "runtime/ops/checksum.h"
#include "runtime/ops/convolution.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/grouped_attention.h"
#include "runtime/ops/images.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/ops/optimizers/orthogonal.h"
#include "runtime/ops/quantisation.h"
#include "runtime/ops/reduction.h"
#include "runtime/ops/rms_norm.h"

// A build without CUDA: a line per family.

namespace ddptrain {

namespace {

[[noreturn]] void not_built() { fail("operations on a GPU, in a program that was built without CUDA"); }

}  // namespace

std::unique_ptr<ActivationOps> ActivationOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<AttentionOps> AttentionOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<CachedAttentionOps> CachedAttentionOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<ChecksumOps> ChecksumOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<ConvolutionOps> ConvolutionOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<EmbeddingOps> EmbeddingOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<GatedOps> GatedOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<GroupedAttentionOps> GroupedAttentionOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<ImageOps> ImageOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<LinearOps> LinearOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<LossOps> LossOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<NormOps> NormOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<OptimizerOps> OptimizerOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<OrthogonalOps> OrthogonalOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<QuantisationOps> QuantisationOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<ReductionOps> ReductionOps::on_cuda(Device&) { not_built(); }
std::unique_ptr<RmsNormOps> RmsNormOps::on_cuda(Device&) { not_built(); }

}  // namespace ddptrain
