#include "runtime/ops/cached_attention.h"

#include <algorithm>
#include <cmath>

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kQueryRows = 32;  // queries of a block

/// One group of heads of one text.
template <class T>
class CachedGroup {
 public:
  /// `index` counts groups, text by text. `scores` has room for kQueryRows rows of scores.
  CachedGroup(const CachedAttentionShape& d, std::int64_t first_position, const GroupedHeads& heads, std::int64_t index,
              T* scores)
      : d_(d),
        first_position_(first_position),
        heads_(heads),
        text_(index / heads.key_heads),
        group_(index % heads.key_heads),
        scores_(scores) {}

  void attend(const T* qkv, T* keys, T* values, T* out) const {
    const T* const rows = qkv + text_ * d_.sequence * heads_.columns();
    StridedView<T> k = cached(keys);
    StridedView<T> v = cached(values);
    k.bottomRows(d_.sequence) = new_rows(rows + heads_.key_column(group_));
    v.bottomRows(d_.sequence) = new_rows(rows + heads_.value_column(group_));
    for (std::int64_t i = 0; i < heads_.queries(); ++i) {
      const std::int64_t head = group_ * heads_.queries() + i;
      T* const first = out + text_ * d_.sequence * heads_.width() + head * heads_.head_size;
      StridedView<T> y(first, d_.sequence, heads_.head_size, Eigen::OuterStride<>(heads_.width()));
      attend(new_rows(rows + heads_.query_column(head)), k, v, y);
    }
  }

 private:
  /// One head of the rows of qkv.
  ConstStridedView<T> new_rows(const T* first) const {
    return {first, d_.sequence, heads_.head_size, Eigen::OuterStride<>(heads_.columns())};
  }
  /// This group's head in the cache, up to the last of the new rows.
  StridedView<T> cached(T* cache) const {
    const std::int64_t width = heads_.key_heads * heads_.head_size;
    T* const first = cache + text_ * d_.capacity * width + group_ * heads_.head_size;
    return {first, first_position_ + d_.sequence, heads_.head_size, Eigen::OuterStride<>(width)};
  }

  void attend(const ConstStridedView<T>& q, const StridedView<T>& k, const StridedView<T>& v, StridedView<T>& y) const {
    const T scale = T{1} / std::sqrt(static_cast<T>(heads_.head_size));
    for (std::int64_t first = 0; first < d_.sequence; first += kQueryRows) {
      const std::int64_t rows = std::min(kQueryRows, d_.sequence - first);
      const std::int64_t before = first_position_ + first;
      StridedView<T> scores(scores_, rows, before + rows, Eigen::OuterStride<>(d_.capacity));
      scores.noalias() = q.middleRows(first, rows) * k.topRows(before + rows).transpose();
      for (std::int64_t i = 0; i < rows; ++i) {
        auto visible = scores.row(i).head(before + i + 1).array();
        visible = ((visible - visible.maxCoeff()) * scale).exp();
        visible /= visible.sum();
        scores.row(i).tail(rows - i - 1).setZero();
      }
      y.middleRows(first, rows).noalias() = scores * v.topRows(before + rows);
    }
  }

  const CachedAttentionShape& d_;
  std::int64_t first_position_;
  const GroupedHeads& heads_;
  std::int64_t text_;
  std::int64_t group_;
  T* scores_;
};

class CpuCachedAttention final : public CachedAttentionOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void attention(const Tensor& qkv, const GroupedHeads& heads, const std::int64_t* first_position, const Tensor& keys,
                 const Tensor& values, const Tensor& out) override {
    const CachedAttentionShape d = check_cached_attention(qkv, heads, keys, values, out, dtype());
    const std::int64_t first = *first_position;
    DDP_CHECK(first >= 0 && first + d.sequence <= d.capacity, "cached attention: rows {} to {} in a cache of {}", first,
              first + d.sequence - 1, d.capacity);
    with_scalar([&]<class T>(T) {
      T* const memory = scratch<T>(kQueryRows * d.capacity);
      parallel_each(d.batch * heads.key_heads, 1, [&](std::int64_t index, int thread) {
        const CachedGroup<T> group(d, first, heads, index, memory + thread * kQueryRows * d.capacity);
        group.attend(qkv.as<const T>(), keys.as<T>(), values.as<T>(), out.as<T>());
      });
    });
  }

  void rotate_and_attend(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                         const std::int64_t* first_position, const Tensor& keys, const Tensor& values,
                         const Tensor& out) override {
    auto& grouped = device_.get<GroupedAttentionOps>();
    grouped.rotate(qkv, heads, frequencies, first_position, GroupedAttentionOps::Turn::forward);
    attention(qkv, heads, first_position, keys, values, out);
  }
};

}  // namespace

std::unique_ptr<CachedAttentionOps> CachedAttentionOps::on_cpu(Device& device) {
  return std::make_unique<CpuCachedAttention>(device);
}

}  // namespace ddptrain
