#include "runtime/ops/shapes.h"

#include <bit>

#include "runtime/core/error.h"
#include "runtime/ops/loss.h"

namespace ddptrain {

namespace {

/// Type of statistics, statistics and master weights.
DType wide(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// Checks the tensors of one operation.
struct Check {
  const char* operation;
  DType dtype;

  void is(const Tensor& tensor, const char* name, DType type, const Shape& shape) const {
    expect_tensor(operation, name, tensor, type, shape);
  }
  void is(const Tensor& tensor, const char* name, const Shape& shape) const { is(tensor, name, dtype, shape); }
  /// If it has data.
  void may_be(const Tensor& tensor, const char* name, const Shape& shape) const {
    if (tensor) is(tensor, name, shape);
  }
  void is_gradient(const Tensor& tensor, const char* name, const Shape& shape) const {
    expect_gradient(operation, name, tensor, dtype, shape);
  }
  /// The tensor has the activations' type, or `fp8` if activations are bf16.
  void is_or_fp8(const Tensor& tensor, const char* name, DType fp8, const Shape& shape) const {
    is(tensor, name, dtype == DType::bf16 && tensor.dtype == fp8 ? fp8 : dtype, shape);
  }
  void has_dimensions(const Tensor& tensor, const char* name, std::size_t count) const {
    DDP_CHECK(tensor.shape.size() == count, "{}: {} must have {} dimensions", operation, name, count);
  }
  MatrixShape matrix(const Tensor& tensor, const char* name) const {
    DDP_CHECK(!tensor.shape.empty() && tensor.shape.back() > 0, "{}: {} has no columns", operation, name);
    is(tensor, name, tensor.shape);
    return {tensor.size() / tensor.shape.back(), tensor.shape.back()};
  }
};

EmbeddingShape embedding_shape(const Check& check, const TokenBatch& batch, const Tensor& activation,
                               const Tensor& token, const Tensor& position) {
  check.has_dimensions(token, "the embedding of tokens", 2);
  const EmbeddingShape s{batch.count, batch.source.sequence, token.dim(1), token.dim(0)};
  check.is(activation, "the activation", {s.batch, s.sequence, s.width});
  check.is_gradient(token, "the embedding of tokens", token.shape);
  if (!position) return s;
  check.has_dimensions(position, "the embedding of positions", 2);
  check.is(position, "the embedding of positions", token.dtype, {position.dim(0), s.width});
  DDP_CHECK(position.dim(0) >= s.sequence, "{}: {} positions for windows of {}", check.operation, position.dim(0),
            s.sequence);
  return s;
}

/// Sizes of a linear layer, from `rows` [batch, ...] and weight [out, in].
LinearShape linear_shape(const Check& check, const Tensor& rows, const Tensor& weight) {
  check.has_dimensions(rows, "x or dy", 2);
  check.has_dimensions(weight, "weight", 2);
  return {rows.dim(0), weight.dim(1), weight.dim(0)};
}

}  // namespace

void expect_tensor(const char* operation, const char* name, const Tensor& tensor, DType dtype, const Shape& shape) {
  DDP_CHECK(tensor.data != nullptr, "{}: {} has no data", operation, name);
  DDP_CHECK(tensor.dtype == dtype, "{}: {} is {}, expected {}", operation, name, name_of(tensor.dtype), name_of(dtype));
  DDP_CHECK(tensor.shape == shape, "{}: {} has shape [{}], expected [{}]", operation, name,
            fmt::join(tensor.shape, ", "), fmt::join(shape, ", "));
}

void expect_gradient(const char* operation, const char* name, const Tensor& gradient, DType dtype, const Shape& shape) {
  const bool is_wider = dtype == DType::bf16 && gradient.dtype == DType::f32;
  expect_tensor(operation, name, gradient, is_wider ? DType::f32 : dtype, shape);
}

MatrixShape check_activation(const char* operation, const Tensor& x, const Tensor& y, const Tensor& vector,
                             DType dtype) {
  const Check check{operation, dtype};
  const MatrixShape s = check.matrix(x, "x");
  check.is(y, "y", x.shape);
  check.may_be(vector, "bias", {s.columns});
  return s;
}

AttentionShape check_attention(const char* operation, const Tensor& qkv, std::int64_t heads, const Tensor& out,
                               const Tensor& statistics, const Tensor& d_output, const Tensor& dqkv, DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(qkv, "qkv", 3);
  DDP_CHECK(heads > 0 && qkv.dim(2) % (3 * heads) == 0, "{}: {} heads in {} columns of qkv", operation, heads,
            qkv.dim(2));
  const AttentionShape s{qkv.dim(0), heads, heads, qkv.dim(1), qkv.dim(2) / (3 * heads)};
  check.is(qkv, "qkv", qkv.shape);
  check.is(out, "out", {s.batch, s.sequence, s.width()});
  check.is(statistics, "statistics", wide(dtype), {s.batch, heads, s.sequence});
  check.may_be(d_output, "d_output", out.shape);
  check.may_be(dqkv, "dqkv", qkv.shape);
  return s;
}

GroupedAttentionShape check_grouped_qkv(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                        DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(qkv, "qkv", 3);
  DDP_CHECK(heads.key_heads > 0 && heads.heads % heads.key_heads == 0 && heads.columns() == qkv.dim(2),
            "{}: {} heads of queries and {} of keys, of size {}, in {} columns of qkv", operation, heads.heads,
            heads.key_heads, heads.head_size, qkv.dim(2));
  check.is(qkv, "qkv", qkv.shape);
  return {qkv.dim(0), qkv.dim(1), heads};
}

GroupedAttentionShape check_grouped_attention(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                              const Tensor& out, const Tensor& statistics, const Tensor& d_output,
                                              const Tensor& dqkv, DType dtype) {
  const GroupedAttentionShape s = check_grouped_qkv(operation, qkv, heads, dtype);
  const Check check{operation, dtype};
  check.is(out, "out", {s.batch, s.sequence, heads.width()});
  check.is(statistics, "statistics", wide(dtype), {s.batch, heads.heads, s.sequence});
  check.may_be(d_output, "d_output", out.shape);
  check.may_be(dqkv, "dqkv", qkv.shape);
  return s;
}

GroupedAttentionShape check_rotate(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                                   DType dtype) {
  const GroupedAttentionShape s = check_grouped_qkv("rotate", qkv, heads, dtype);
  const Check check{"rotate", dtype};
  if (!frequencies) return s;
  DDP_CHECK(heads.head_size % 2 == 0, "rotate: heads of {} columns cannot be turned in pairs", heads.head_size);
  check.is(frequencies, "frequencies", wide(dtype), {heads.head_size / 2});
  return s;
}

CachedAttentionShape check_cached_attention(const Tensor& qkv, const GroupedHeads& heads, const Tensor& keys,
                                            const Tensor& values, const Tensor& out, DType dtype) {
  const Check check{"cached attention", dtype};
  const auto [batch, sequence, grouped] = check_grouped_qkv(check.operation, qkv, heads, dtype);
  check.has_dimensions(keys, "keys", 3);
  const CachedAttentionShape s{batch, sequence, keys.dim(1)};
  check.is(keys, "keys", {batch, s.capacity, heads.key_heads * heads.head_size});
  check.is(values, "values", keys.shape);
  check.is(out, "out", {batch, sequence, heads.width()});
  DDP_CHECK(sequence <= s.capacity, "cached attention: {} rows in a cache of {}", sequence, s.capacity);
  return s;
}

GroupedAttentionShape check_normalise(const char* operation, const Tensor& qkv, const GroupedHeads& heads,
                                      const Tensor& query_weight, const Tensor& key_weight, const Tensor& y,
                                      const Tensor& statistics, DType dtype) {
  const GroupedAttentionShape s = check_grouped_qkv(operation, qkv, heads, dtype);
  const Check check{operation, dtype};
  check.is(query_weight, "the weight of queries", {heads.head_size});
  check.is(key_weight, "the weight of keys", {heads.head_size});
  check.is(y, "y", qkv.shape);
  check.is(statistics, "statistics", wide(dtype), {s.batch * s.sequence, heads.key_heads * (heads.queries() + 1)});
  return s;
}

ConvShape check_conv2d(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                       const Tensor& y, DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(x, "x", 4);
  check.has_dimensions(weight, "weight", 4);
  const ConvShape s{x.dim(0), x.dim(1), x.dim(2), x.dim(3), weight.dim(0), weight.dim(1)};
  DDP_CHECK(s.out_height() > 0 && s.out_width() > 0, "{}: the kernel is larger than the image", operation);
  check.is(x, "x", x.shape);
  check.is(weight, "weight", {s.out, s.kernel, s.kernel, s.in});
  check.may_be(bias, "bias", {s.out});
  check.is(y, "y", {s.batch, s.out_height(), s.out_width(), s.out});
  return s;
}

ConvShape check_conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                const Tensor& dweight, DType dtype) {
  const Check check{"conv2d_backward", dtype};
  check.is(dweight, "dweight", weight.shape);
  check.may_be(dx, "dx", x.shape);
  return check_conv2d(check.operation, x, weight, {}, dy, dtype);
}

EmbeddingShape check_embed_tokens(const TokenBatch& batch, const Tensor& token_embedding,
                                  const Tensor& position_embedding, const Tensor& out, DType dtype) {
  const Check check{"embed_tokens", dtype};
  check.is(token_embedding, "the embedding of tokens", token_embedding.shape);
  return embedding_shape(check, batch, out, token_embedding, position_embedding);
}

EmbeddingShape check_embed_tokens_backward(const TokenBatch& batch, const Tensor& d_output, const Tensor& head,
                                           const Tensor& dtoken, const Tensor& dposition, DType dtype) {
  const Check check{"embed_tokens_backward", dtype};
  const EmbeddingShape s = embedding_shape(check, batch, d_output, dtoken, dposition);
  if (!head) return s;
  DDP_CHECK(head.shape.size() == 2 && head.dim(0) >= s.vocabulary, "embed_tokens_backward: head has too few rows");
  check.is(head, "head", wide(dtype), {head.dim(0), s.width});
  return s;
}

MatrixShape check_gather_images(const ImageBatch& batch, const Tensor& out, DType dtype) {
  const Check check{"gather_images", dtype};
  const Tensor& images = batch.images;
  check.has_dimensions(images, "images", 3);
  check.is(images, "images", DType::u8, images.shape);
  check.is(out, "out", {batch.count, images.dim(1), images.dim(2), 1});
  return {batch.count, images.dim(1) * images.dim(2)};
}

LinearShape check_linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y, DType dtype) {
  const Check check{"linear", dtype};
  const LinearShape s = linear_shape(check, x, weight);
  check.is_or_fp8(x, "x", DType::e4m3, {s.batch, s.in});
  check.is(weight, "weight", x.dtype, weight.shape);
  check.may_be(bias, "bias", {s.out});
  check.is(y, "y", {s.batch, s.out});
  return s;
}

LinearShape check_linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                  const Tensor& dweight, const Tensor& dbias, DType dtype) {
  const Check check{"linear_backward", dtype};
  const LinearShape s = linear_shape(check, dy, weight);
  check.is_or_fp8(dy, "dy", DType::e5m2, {s.batch, s.out});
  const DType operand = is_fp8(dy.dtype) ? DType::e4m3 : dtype;
  check.is(weight, "weight", operand, weight.shape);
  if (dweight) check.is(x, "x", operand, {s.batch, s.in});
  if (dweight) check.is_gradient(dweight, "dweight", {s.out, s.in});
  check.may_be(dx, "dx", {s.batch, s.in});
  if (dbias) check.is_gradient(dbias, "dbias", {s.out});
  DDP_CHECK(!dbias || !is_fp8(dy.dtype), "linear_backward: the bias gradient of a dy in FP8 comes from to_fp8");
  return s;
}

void check_gelu(const Tensor& pre, const Tensor& y, DType dtype) {
  const Check check{"gelu", dtype};
  check.is(pre, "pre", pre.shape);
  check.is_or_fp8(y, "y", DType::e4m3, pre.shape);
}

LinearShape check_linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                                       const Tensor& dbias, DType dtype) {
  const Check check{"linear_gelu_backward", dtype};
  const LinearShape s = linear_shape(check, dy, weight);
  check.is_or_fp8(dy, "dy", DType::e5m2, {s.batch, s.out});
  check.is(weight, "weight", is_fp8(dy.dtype) ? DType::e4m3 : dtype, weight.shape);
  check.is(dpre, "dpre", dy.dtype, {s.batch, s.in});
  check.is(pre, "pre", dpre.shape);
  if (dbias) check.is_gradient(dbias, "dbias", {s.in});
  return s;
}

MatrixShape check_softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, const Tensor& dlogits,
                                        DType dtype) {
  const Check check{"softmax_cross_entropy", dtype};
  const MatrixShape s = check.matrix(logits, "logits");
  check.is(logits, "logits", {batch.count, s.columns});
  check.may_be(dlogits, "dlogits", logits.shape);
  check.is(batch.labels, "labels", DType::u8, batch.labels.shape);
  return s;
}

MatrixShape check_predictions(const char* operation, const Tensor& logits, const TokenBatch& batch,
                              std::int64_t first_row, std::int64_t vocabulary, const Tensor& statistics,
                              const Tensor& dlogits, DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(logits, "logits", 2);
  const MatrixShape s = check.matrix(logits, "logits");
  DDP_CHECK(vocabulary > 0 && vocabulary <= s.columns, "{}: vocabulary {} of {} columns", operation, vocabulary,
            s.columns);
  const std::int64_t predictions = batch.count * batch.source.sequence;
  DDP_CHECK(first_row >= 0 && first_row + s.rows <= predictions, "{}: rows {} to {} of a batch of {}", operation,
            first_row, first_row + s.rows, predictions);
  check.may_be(dlogits, "dlogits", logits.shape);
  if (statistics) {
    Shape of_parts = statistics.shape.size() == 3 ? Shape{statistics.dim(0)} : Shape{};
    of_parts.insert(of_parts.end(), {s.rows, LossOps::kSoftmaxStatistics});
    check.is(statistics, "statistics", wide(dtype), of_parts);
  }
  return s;
}

MatrixShape check_layer_norm(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& bias,
                             const Tensor& y, const Tensor& statistics, DType dtype) {
  const Check check{operation, dtype};
  const MatrixShape s = check.matrix(x, "x");
  check.is(weight, "weight", {s.columns});
  check.is(bias, "bias", {s.columns});
  check.is_or_fp8(y, "y", DType::e4m3, x.shape);
  check.is(statistics, "statistics", wide(dtype), {s.rows, 2});
  return s;
}

MatrixShape check_add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout,
                                 const Tensor& weight, const Tensor& bias, const Tensor& sum, const Tensor& y,
                                 const Tensor& statistics, DType dtype) {
  const Check check{"add_layer_norm", dtype};
  if (dropout.rate > 0.0f) check.has_dimensions(sum, "sum", 3);
  check.is(residual, "residual", sum.shape);
  for (const Tensor& term : branch.all()) check.is(term, "branch", sum.shape);
  return check_layer_norm(check.operation, sum, weight, bias, y, statistics, dtype);
}

MatrixShape check_layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                      const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                      const Tensor& dbias, const Tensor& dx_sums, DType dtype) {
  const Check check{"layer_norm_backward", dtype};
  const MatrixShape s = check.matrix(x, "x");
  check.is(weight, "weight", {s.columns});
  check.is(statistics, "statistics", wide(dtype), {s.rows, 2});
  for (const Tensor& term : dy.all()) check.is(term, "dy", x.shape);
  check.may_be(dresidual, "dresidual", x.shape);
  check.is(dx, "dx", x.shape);
  check.is_gradient(dweight, "dweight", {s.columns});
  check.is(dbias, "dbias", dweight.dtype, {s.columns});
  if (dx_sums) check.is(dx_sums, "dx_sums", dweight.dtype, {s.columns});
  return s;
}

MatrixShape check_rms_norm(const char* operation, const Tensor& x, const Tensor& weight, const Tensor& y,
                           const Tensor& statistics, DType dtype) {
  const Check check{operation, dtype};
  const MatrixShape s = check.matrix(x, "x");
  check.is(weight, "weight", {s.columns});
  check.is_or_fp8(y, "y", DType::e4m3, x.shape);
  check.is(statistics, "statistics", wide(dtype), {s.rows, 1});
  return s;
}

MatrixShape check_add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout,
                               const Tensor& weight, const Tensor& sum, const Tensor& y, const Tensor& statistics,
                               DType dtype) {
  const Check check{"add_rms_norm", dtype};
  if (dropout.rate > 0.0f) check.has_dimensions(sum, "sum", 3);
  check.is(residual, "residual", sum.shape);
  for (const Tensor& term : branch.all()) check.is(term, "branch", sum.shape);
  return check_rms_norm(check.operation, sum, weight, y, statistics, dtype);
}

MatrixShape check_rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& dy,
                                    const Tensor& dresidual, const Tensor& dx, const Tensor& dweight,
                                    const Tensor& dx_sums, DType dtype) {
  const Check check{"rms_norm_backward", dtype};
  const MatrixShape s = check.matrix(x, "x");
  check.is(weight, "weight", {s.columns});
  check.is(statistics, "statistics", wide(dtype), {s.rows, 1});
  for (const Tensor& term : dy.all()) check.is(term, "dy", x.shape);
  check.may_be(dresidual, "dresidual", x.shape);
  check.is(dx, "dx", x.shape);
  check.is_gradient(dweight, "dweight", {s.columns});
  if (dx_sums) check.is(dx_sums, "dx_sums", dweight.dtype, {s.columns});
  return s;
}

MatrixShape check_swiglu(const char* operation, const Tensor& pre, const Tensor& y, const Tensor& dpre, DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(y, "y", 2);
  DDP_CHECK(y.dim(1) > 0, "{}: y has no columns", operation);
  const MatrixShape s{y.dim(0), y.dim(1)};
  if (dpre) {
    check.is(y, "dy", y.shape);
    check.is_or_fp8(dpre, "dpre", DType::e5m2, pre.shape);
  } else {
    check.is_or_fp8(y, "y", DType::e4m3, y.shape);
  }
  check.is(pre, "pre", {s.rows, 2 * s.columns});
  return s;
}

PoolShape check_pool(const char* operation, const Tensor& images, const Tensor& bias, const Tensor& pooled,
                     const Tensor& winner, DType dtype) {
  const Check check{operation, dtype};
  check.has_dimensions(images, "images", 4);
  const Shape output = {images.dim(0), images.dim(1) / 2, images.dim(2) / 2, images.dim(3)};
  check.is(images, "images", images.shape);
  check.is(bias, "bias", {images.dim(3)});
  check.is(pooled, "pooled images", output);
  check.is(winner, "winner", DType::u8, output);
  const auto dim = [&images](std::size_t i) { return static_cast<std::uint32_t>(images.dim(i)); };
  return {dim(0), dim(1), dim(2), dim(3)};
}

void check_nodes(const char* operation, const std::vector<Tensor>& nodes, const Tensor& sum, DType dtype) {
  DDP_CHECK(!nodes.empty(), "{} of nothing", operation);
  const auto check = [&](const Tensor& node) {
    DDP_CHECK(node.dtype == wide(dtype) || node.dtype == DType::bf16, "{} of {}", operation, name_of(node.dtype));
    DDP_CHECK(node.size() == sum.size(), "{}: {} elements in a sum of {}", operation, node.size(), sum.size());
  };
  check(sum);
  for (const Tensor& node : nodes) check(node);
}

void check_update(OptimizerKind kind, const UpdateSlice& slice, DType dtype) {
  const auto index = static_cast<std::size_t>(kind);
  DDP_CHECK(index < kOptimizerRules.size(), "optimizer {}: there is no such rule", index);
  const OptimizerRule& rule = kOptimizerRules[index];
  for (std::size_t i = 0; i < rule.slots; ++i) {
    DDP_CHECK(slice.state[i] != nullptr, "{} keeps {} slots, of which number {} has no memory", rule.name, rule.slots,
              i);
  }
  const DType master = wide(dtype);
  if (slice.masterless) {
    const bool known = slice.weight_type == DType::bf16 || slice.weight_type == master;
    DDP_CHECK(known && slice.weights == slice.master, "update: weights of {} without master weights",
              name_of(slice.weight_type));
  } else {
    const DType expected = slice.weights == slice.master ? master : DType::bf16;
    DDP_CHECK(slice.weight_type == expected && (expected == master || master == DType::f32),
              "update: weights of {} beside master weights of {}", name_of(slice.weight_type), name_of(master));
  }
  DDP_CHECK(slice.state_type == master || slice.state_type == DType::bf16, "update: state of {}",
            name_of(slice.state_type));
  DDP_CHECK(!slice.rounds_at_random() || slice.parameters != nullptr, "update: random bits need the parameters");
  DDP_CHECK(slice.gradient_type == master || slice.gradient_type == DType::bf16, "update: gradients of {}",
            name_of(slice.gradient_type));
}

void check_add_tree(const Tensor& leaves, const Tensor& sum, DType dtype) {
  DDP_CHECK(leaves.shape.size() == 2 && std::has_single_bit(static_cast<std::uint64_t>(leaves.dim(0))),
            "add_tree: leaves are [rows, count], with a power of two of rows");
  check_nodes("add_tree", {{leaves.data, leaves.dtype, {leaves.dim(1)}}}, sum, dtype);
}

}  // namespace ddptrain
