#include "runtime/backend/backend.h"

#include "runtime/backend/cnn_kernels.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::unique_ptr<CnnKernels> Backend::make_cnn_kernels(const CnnShape&, std::int64_t) { return nullptr; }

void Backend::embed_tokens(const TokenBatch&, const Tensor&, const Tensor&, const Dropout&, const Tensor&) {
  fail("embed_tokens: not on this device");
}
void Backend::embed_tokens_backward(const TokenBatch&, const Dropout&, const Tensor&, const Tensor&, const Tensor&,
                                    const Tensor&, bool) {
  fail("embed_tokens_backward: not on this device");
}
void Backend::layer_norm(const Tensor&, const Tensor&, const Tensor&, float, const Tensor&, const Tensor&) {
  fail("layer_norm: not on this device");
}
void Backend::add_layer_norm(const Tensor&, const Tensor&, const Dropout&, const Tensor&, const Tensor&, float,
                             const Tensor&, const Tensor&, const Tensor&) {
  fail("add_layer_norm: not on this device");
}
void Backend::layer_norm_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&,
                                  const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool) {
  fail("layer_norm_backward: not on this device");
}
void Backend::dropout(const Tensor&, const Dropout&, const Tensor&) { fail("dropout: not on this device"); }
void Backend::linear_gelu(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&) {
  fail("linear_gelu: not on this device");
}
void Backend::gelu(const Tensor&, const Tensor&) { fail("gelu: not on this device"); }
void Backend::linear_gelu_backward(const Tensor&, const Tensor&, const Tensor&, const Tensor&, const Tensor&, bool) {
  fail("linear_gelu_backward: not on this device");
}
void Backend::attention(const Tensor&, std::int64_t, const Tensor&, const Tensor&) {
  fail("attention: not on this device");
}
void Backend::attention_backward(const Tensor&, std::int64_t, const Tensor&, const Tensor&, const Tensor&,
                                 const Tensor&) {
  fail("attention_backward: not on this device");
}
void Backend::token_cross_entropy(const Tensor&, const TokenBatch&, std::int64_t, std::int64_t, float, const Tensor&,
                                  MetricSums*) {
  fail("token_cross_entropy: not on this device");
}

}  // namespace ddptrain
