#pragma once

#include <cstdint>

#include "runtime/ops/family.h"
#include "runtime/ops/grouped_attention.h"

namespace ddptrain {

/// Self-attention of rows that continue texts. A cache has the keys and values of the rows before them. It and
/// *first_position may be read before earlier operations have ended, as weights may be: see LinearOps.
class CachedAttentionOps : public Family<CachedAttentionOps> {
 public:
  /// qkv [batch, sequence, columns], kind by kind (GroupedHeads), are the rows at positions *first_position,
  /// *first_position + 1, ... of each text; the number is in memory of the device, and the last position is below
  /// `capacity`. keys and values [batch, capacity, key_heads * head_size] have those of all rows before, and get those
  /// of qkv. out [batch, sequence, width] = softmax(q k^T / sqrt(head_size)) v per head, over the positions up to the
  /// row's own.
  virtual void attention(const Tensor& qkv, const GroupedHeads& heads, const std::int64_t* first_position,
                         const Tensor& keys, const Tensor& values, const Tensor& out) = 0;
  /// GroupedAttentionOps::rotate() of rows that are group by group, forward, and then attention(). It may change qkv.
  virtual void rotate_and_attend(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                                 const std::int64_t* first_position, const Tensor& keys, const Tensor& values,
                                 const Tensor& out) = 0;

  static std::unique_ptr<CachedAttentionOps> on_cpu(Device& device);
  static std::unique_ptr<CachedAttentionOps> on_cuda(Device& device);
};

}  // namespace ddptrain
