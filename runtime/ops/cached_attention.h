#pragma once

#include <cstdint>

#include "runtime/ops/family.h"
#include "runtime/ops/grouped_attention.h"

namespace ddptrain {

/// Where a row of qkv has its heads: group by group (GroupedHeads), or first all queries, then all keys, then all
/// values (AttentionOps).
struct QkvColumns {
  GroupedHeads heads;
  bool grouped = true;

  std::int64_t query(std::int64_t head) const {
    if (!grouped) return head * heads.head_size;
    return head / heads.queries() * heads.group_columns() + head % heads.queries() * heads.head_size;
  }
  std::int64_t key(std::int64_t key_head) const {
    if (!grouped) return (heads.heads + key_head) * heads.head_size;
    return key_head * heads.group_columns() + heads.queries() * heads.head_size;
  }
  std::int64_t value(std::int64_t key_head) const {
    return key(key_head) + (grouped ? 1 : heads.key_heads) * heads.head_size;
  }
};

/// Self-attention of rows that continue texts. A cache has the keys and values of the rows before them.
class CachedAttentionOps : public Family<CachedAttentionOps> {
 public:
  /// qkv [batch, sequence, columns] are the rows at positions *first_position, *first_position + 1, ... of each text;
  /// the number is in memory of the device, and the last position is below `capacity`. keys and values
  /// [batch, capacity, key_heads * head_size] have those of all rows before, and get those of qkv. out
  /// [batch, sequence, width] = softmax(q k^T / sqrt(head_size)) v per head, over the positions up to the row's own.
  virtual void attention(const Tensor& qkv, const QkvColumns& columns, const std::int64_t* first_position,
                         const Tensor& keys, const Tensor& values, const Tensor& out) = 0;

  static std::unique_ptr<CachedAttentionOps> on_cpu(Device& device);
  static std::unique_ptr<CachedAttentionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
