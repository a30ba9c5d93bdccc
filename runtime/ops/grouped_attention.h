#pragma once

#include <cstdint>

#include "runtime/ops/family.h"

namespace ddptrain {

/// Heads of attention of which several share a key and a value (Ainslie et al., "GQA", arXiv:2305.13245).
///
/// A row of qkv has one of two orders. The linear layer before attention writes it group by group: for each key its
/// queries, the key, its value. So ranks that split the layer have whole groups, which are consecutive. Attention reads
/// it kind by kind: all queries, all keys, all values.
struct GroupedHeads {
  std::int64_t heads = 0;      ///< Heads of queries, a multiple of key_heads.
  std::int64_t key_heads = 0;  ///< Heads of keys, and as many of values.
  std::int64_t head_size = 0;

  std::int64_t queries() const { return heads / key_heads; }  ///< Heads of queries in a group.
  std::int64_t width() const { return heads * head_size; }    ///< Columns of all queries, and of the output.
  std::int64_t group_columns() const { return (queries() + 2) * head_size; }
  std::int64_t columns() const { return key_heads * group_columns(); }  ///< Columns of qkv.

  // First columns of heads, kind by kind.
  std::int64_t query_column(std::int64_t head) const { return head * head_size; }
  std::int64_t key_column(std::int64_t key_head) const { return (heads + key_head) * head_size; }
  std::int64_t value_column(std::int64_t key_head) const { return (heads + key_heads + key_head) * head_size; }
};

/// Self-attention with grouped heads, and what is done to queries and keys before it.
class GroupedAttentionOps : public Family<GroupedAttentionOps> {
 public:
  /// Causal self-attention: out [batch, sequence, width] = softmax(q k^T / sqrt(head_size)) v per head. qkv
  /// [batch, sequence, columns], kind by kind; statistics [batch, heads, sequence]: for the backward pass alone.
  virtual void attention(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out, const Tensor& statistics) = 0;
  virtual void attention_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out,
                                  const Tensor& statistics, const Tensor& d_output, const Tensor& dqkv) = 0;

  enum class Turn : std::uint8_t { forward, back };
  /// Rotary positions, in place (Su et al., "RoFormer", arXiv:2104.09864): turns elements i and i + head_size / 2 of
  /// each query and key by the angle position * frequencies[i]. frequencies [head_size / 2]: f32 (f64 for fp64);
  /// without data nothing is turned. `first_position`, in memory of the device: the position of the first row of each
  /// window; null: 0. Rows that are group by group become kind by kind. `back` turns gradients back, from kind by kind
  /// to group by group.
  virtual void rotate(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                      const std::int64_t* first_position, Turn turn) = 0;

  /// y = qkv, both group by group, but for queries and keys, which are rms_norm() of each head with their weights
  /// [head_size]. statistics
  /// [batch * sequence, key_heads * (queries + 1)].
  virtual void normalise(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight,
                         const Tensor& key_weight, float epsilon, const Tensor& y, const Tensor& statistics) = 0;
  /// dqkv, group by group, in place: from the gradient of y to that of qkv.
  virtual void normalise_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight,
                                  const Tensor& key_weight, const Tensor& statistics, const Tensor& dqkv,
                                  const Tensor& dquery_weight, const Tensor& dkey_weight, bool accumulate) = 0;

  static std::unique_ptr<GroupedAttentionOps> on_cpu(Device& device);
  static std::unique_ptr<GroupedAttentionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
