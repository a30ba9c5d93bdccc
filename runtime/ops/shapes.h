#pragma once

#include <cstdint>
#include <vector>

#include "runtime/core/step.h"
#include "runtime/core/tensor.h"
#include "runtime/ops/grouped_attention.h"
#include "runtime/ops/image_batch.h"
#include "runtime/ops/optimizers/optimizer.h"
#include "runtime/ops/terms.h"
#include "runtime/ops/token_batch.h"

/// The checks of tensors that CPUs and GPUs share. Each throws Error, which names operation and tensor, unless all
/// tensors have data, element types and shapes as the operation's contract says, and returns the sizes that they agree
/// on. Optional tensors are checked if they have data. `dtype`: of activations.

namespace ddptrain {

/// Throws Error naming operation and tensor unless it has data, this element type and this shape.
void expect_tensor(const char* operation, const char* name, const Tensor& tensor, DType dtype, const Shape& shape);
/// The same for the gradient of a parameter: of type `dtype`, or f32 if that is bf16.
void expect_gradient(const char* operation, const char* name, const Tensor& gradient, DType dtype, const Shape& shape);

/// A tensor as a matrix, whose columns are the last dimension.
struct MatrixShape {
  std::int64_t rows;
  std::int64_t columns;
};

struct AttentionShape {
  std::int64_t batch = 0;
  std::int64_t heads = 0;      ///< Of queries.
  std::int64_t key_heads = 0;  ///< Of keys, and of values. It divides `heads`.
  std::int64_t sequence = 0;
  std::int64_t head_size = 0;

  std::int64_t width() const { return heads * head_size; }  ///< Columns of all queries, and of the output.
  std::int64_t key_width() const { return key_heads * head_size; }
  std::int64_t columns() const { return width() + 2 * key_width(); }  ///< Of queries, keys and values.
  auto operator<=>(const AttentionShape&) const = default;
};

struct GroupedAttentionShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  GroupedHeads heads = {};

  AttentionShape attention() const { return {batch, heads.heads, heads.key_heads, sequence, heads.head_size}; }
};

struct CachedAttentionShape {
  std::int64_t batch = 0;
  std::int64_t sequence = 0;
  std::int64_t capacity = 0;  ///< Positions of the cache.
};

/// A valid convolution of stride 1 with a square kernel.
struct ConvShape {
  std::int64_t batch = 0;
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::int64_t in = 0;
  std::int64_t out = 0;
  std::int64_t kernel = 0;

  std::int64_t out_height() const { return height - kernel + 1; }
  std::int64_t out_width() const { return width - kernel + 1; }
  auto operator<=>(const ConvShape&) const = default;
};

struct EmbeddingShape {
  std::int64_t batch;
  std::int64_t sequence;
  std::int64_t width;
  std::int64_t vocabulary;
};

/// Sizes of a linear layer's product.
struct LinearShape {
  std::int64_t batch;
  std::int64_t in;
  std::int64_t out;
};

/// Images before a max-pool of 2 x 2.
struct PoolShape {
  std::uint32_t batch;
  std::uint32_t height;
  std::uint32_t width;
  std::uint32_t channels;

  DDP_HOST_DEVICE std::uint32_t out_width() const { return width / 2; }
  DDP_HOST_DEVICE std::uint32_t out_pixels() const { return (height / 2) * (width / 2); }
  DDP_HOST_DEVICE std::uint32_t features() const { return out_pixels() * channels; }
  /// Offset in an image of the first channel of the top left input of an output pixel.
  DDP_HOST_DEVICE std::uint32_t corner(std::uint32_t out_pixel) const {
    return (2 * (out_pixel / out_width()) * width + 2 * (out_pixel % out_width())) * channels;
  }
  DDP_HOST_DEVICE std::size_t image() const { return static_cast<std::size_t>(height) * width * channels; }
  /// Whether the last row or column belongs to no window.
  bool has_rest() const { return height % 2 != 0 || width % 2 != 0; }
};

/// Operations of ActivationOps: `vector` (optional) is the bias or its gradient.
MatrixShape check_activation(const char* operation, const Tensor& x, const Tensor& y, const Tensor& vector,
                             DType dtype);
/// d_output and dqkv: of the backward pass.
AttentionShape check_attention(const char* operation, const Tensor& qkv, std::int64_t heads, const Tensor& out,
                               const Tensor& statistics, const Tensor& d_output, const Tensor& dqkv, DType dtype);
GroupedAttentionShape check_grouped_qkv(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                        DType dtype);
/// d_output and dqkv: of the backward pass.
GroupedAttentionShape check_grouped_attention(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                              const Tensor& out, const Tensor& statistics, const Tensor& d_output,
                                              const Tensor& dqkv, DType dtype);
/// `frequencies` is optional.
GroupedAttentionShape check_rotate(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                                   DType dtype);
CachedAttentionShape check_cached_attention(const Tensor& qkv, const GroupedHeads& heads, const Tensor& keys,
                                            const Tensor& values, const Tensor& out, DType dtype);
GroupedAttentionShape check_normalise(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                      const Tensor& query_weight, const Tensor& key_weight, const Tensor& y,
                                      const Tensor& statistics, DType dtype);
ConvShape check_conv2d(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& y, DType dtype);
ConvShape check_conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                const Tensor& dweight, DType dtype);
EmbeddingShape check_embed_tokens(const TokenBatch& batch, const Tensor& token_embedding,
                                  const Tensor& position_embedding, const Tensor& out, DType dtype);
EmbeddingShape check_embed_tokens_backward(const TokenBatch& batch, const Tensor& d_output, const Tensor& head,
                                           const Tensor& dtoken, const Tensor& dposition, DType dtype);
/// Returns [images, pixels of one].
MatrixShape check_gather_images(const ImageBatch& batch, const Tensor& out, DType dtype);
LinearShape check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, DType dtype);
LinearShape check_linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                  const Tensor& dweight, const Tensor& dbias, DType dtype);
void check_gelu(const Tensor& pre, const Tensor& y, DType dtype);
LinearShape check_linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                       const Tensor& dbias, DType dtype);
/// Losses return the shape of the logits.
MatrixShape check_softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, const Tensor& dlogits,
                                        DType dtype);
/// Losses of tokens; statistics and dlogits are optional.
MatrixShape check_predictions(const char* operation, const Tensor& logits, const TokenBatch& batch,
                              std::int64_t first_row, std::int64_t vocabulary, const Tensor& statistics,
                              const Tensor& dlogits, DType dtype);
MatrixShape check_layer_norm(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Tensor& y, const Tensor& statistics, DType dtype);
MatrixShape check_add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout,
                                 const Tensor& weight, const Tensor& bias, const Tensor& sum, const Tensor& y,
                                 const Tensor& statistics, DType dtype);
MatrixShape check_layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                      const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                      const Tensor& dbias, const Tensor& dx_sums, DType dtype);
MatrixShape check_rms_norm(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& y,
                           const Tensor& statistics, DType dtype);
MatrixShape check_add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout,
                               const Tensor& weight, const Tensor& sum, const Tensor& y, const Tensor& statistics,
                               DType dtype);
MatrixShape check_rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                    const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                    const Tensor& dx_sums, DType dtype);
/// Both passes. Returns the shape of y.
MatrixShape check_swiglu(const char* operation, const Tensor& pre, const Tensor& y, const Tensor& dpre, DType dtype);
/// Both passes: images before the pool, or their gradient, and behind it.
PoolShape check_pool(const char* operation, const Tensor& images, const Tensor& bias, const Tensor& pooled,
                     const Tensor& winner, DType dtype);
/// Arrays of the size of their `sum`, of bf16 or the type of master weights each.
void check_nodes(const char* operation, const std::vector<Tensor>& nodes, const Tensor& sum, DType dtype);
/// Throws also if there is no such rule, or if the slice has no memory for one of its slots.
void check_update(OptimizerKind kind, const UpdateSlice& slice, DType dtype);
void check_add_tree(const Tensor& leaves, const Tensor& sum, DType dtype);

}  // namespace ddptrain
