#include <cmath>

#include "runtime/ops/attention.h"
#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kRows = 32;   // queries of a block
constexpr std::int64_t kAlign = 16;  // elements; rows of scores are whole vectors

std::int64_t score_stride(std::int64_t sequence) { return (sequence + kAlign - 1) / kAlign * kAlign; }
std::int64_t block_size(std::int64_t sequence) {
  return kRows * score_stride(sequence);
}  // elements of a block of scores

/// q, k and v (or their gradients) of head `index % heads` of window `index / heads`: [sequence, head size] each.
template <class View, class T>
struct HeadViews {
  View q;
  View k;
  View v;

  HeadViews(const AttentionShape& d, T* qkv, std::int64_t index)
      : q(view(d, qkv, index, 0)), k(view(d, qkv, index, 1)), v(view(d, qkv, index, 2)) {}

 private:
  static View view(const AttentionShape& d, T* qkv, std::int64_t index, std::int64_t part) {
    const std::int64_t window = index / d.heads;
    T* first = qkv + window * d.sequence * 3 * d.width() + part * d.width() + index % d.heads * d.head_size;
    return View(first, d.sequence, d.head_size, Eigen::OuterStride<>(3 * d.width()));
  }
};

/// The same of an activation of `width` columns.
template <class View, class T>
View head_view(const AttentionShape& d, T* activation, std::int64_t index) {
  T* first = activation + index / d.heads * d.sequence * d.width() + index % d.heads * d.head_size;
  return View(first, d.sequence, d.head_size, Eigen::OuterStride<>(d.width()));
}

/// scores = exp(scores * scale - shift) in the first `visible` columns, 0 in the rest.
template <class T>
void exponentials(RowView<T> scores, std::int64_t visible, T scale, T shift) {
  auto values = scores.head(std::min<std::int64_t>(scores.size(), (visible + kAlign - 1) / kAlign * kAlign));
  values = (values * scale - shift).exp();
  scores.tail(scores.size() - visible).setZero();
}

/// For each block of queries, which see the keys up to their own, by(first query, queries, keys).
template <class By>
void for_each_block(std::int64_t sequence, By&& by) {
  for (std::int64_t first = 0; first < sequence; first += kRows) {
    const std::int64_t end = std::min(sequence, first + kRows);
    by(first, end - first, end);
  }
}

template <class T>
void attend(const AttentionShape& d, const T* qkv, std::int64_t index, T* memory, T* out, T* statistics) {
  const HeadViews<ConstStridedView<T>, const T> head(d, qkv, index);
  auto y = head_view<StridedView<T>>(d, out, index);
  const T scale = T{1} / std::sqrt(static_cast<T>(d.head_size));
  const std::int64_t stride = score_stride(d.sequence);
  for_each_block(d.sequence, [&](std::int64_t first, std::int64_t rows, std::int64_t keys) {
    StridedView<T> scores(memory, rows, keys, Eigen::OuterStride<>(stride));
    scores.noalias() = head.q.middleRows(first, rows) * head.k.topRows(keys).transpose();
    Eigen::Array<T, kRows, 1> sums;
    for (std::int64_t i = 0; i < rows; ++i) {
      RowView<T> row(memory + i * stride, stride);
      const std::int64_t visible = first + i + 1;
      const T largest = row.head(visible).maxCoeff() * scale;
      exponentials(row, visible, scale, largest);
      sums[i] = row.sum();
      statistics[index * d.sequence + first + i] = largest + std::log(sums[i]);
    }
    auto block = y.middleRows(first, rows);
    block.noalias() = scores * head.v.topRows(keys);
    block.array().colwise() /= sums.head(rows);
  });
}

template <class T>
void attend_backward(const AttentionShape& d, const T* qkv, std::int64_t index, T* memory, const T* out,
                     const T* statistics, const T* d_output, T* dqkv) {
  const HeadViews<ConstStridedView<T>, const T> head(d, qkv, index);
  HeadViews<StridedView<T>, T> gradient(d, dqkv, index);
  const auto y = head_view<ConstStridedView<T>>(d, out, index);
  const auto dy = head_view<ConstStridedView<T>>(d, d_output, index);
  const T scale = T{1} / std::sqrt(static_cast<T>(d.head_size));
  const std::int64_t stride = score_stride(d.sequence);
  T* const dmemory = memory + block_size(d.sequence);
  gradient.k.setZero();
  gradient.v.setZero();
  for_each_block(d.sequence, [&](std::int64_t first, std::int64_t rows, std::int64_t keys) {
    StridedView<T> probabilities(memory, rows, keys, Eigen::OuterStride<>(stride));
    StridedView<T> dscores(dmemory, rows, keys, Eigen::OuterStride<>(stride));
    const auto q = head.q.middleRows(first, rows);
    const auto dy_block = dy.middleRows(first, rows);
    probabilities.noalias() = q * head.k.topRows(keys).transpose();
    for (std::int64_t i = 0; i < rows; ++i) {
      exponentials(RowView<T>(memory + i * stride, stride), first + i + 1, scale,
                   statistics[index * d.sequence + first + i]);
    }
    gradient.v.topRows(keys).noalias() += probabilities.transpose() * dy_block;
    dscores.noalias() = dy_block * head.v.topRows(keys).transpose();
    for (std::int64_t i = 0; i < rows; ++i) {
      const T mean = dy.row(first + i).dot(y.row(first + i));
      auto row = dscores.row(i).array();
      row = (row - mean) * probabilities.row(i).array() * scale;
    }
    gradient.q.middleRows(first, rows).noalias() = dscores * head.k.topRows(keys);
    gradient.k.topRows(keys).noalias() += dscores.transpose() * q;
  });
}

class CpuAttention final : public AttentionOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void attention(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics) override {
    const AttentionShape d = check_attention("attention", qkv, heads, out, statistics, {}, {}, dtype());
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(block_size(d.sequence));
      parallel_each(d.batch * heads, 1, [&](std::int64_t index, int thread) {
        attend(d, qkv.as<const T>(), index, memory + thread * block_size(d.sequence), out.as<T>(), statistics.as<T>());
      });
    });
  }

  void attention_backward(const Tensor& qkv, std::int64_t heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& d_output, const Tensor& dqkv) override {
    const AttentionShape d =
        check_attention("attention_backward", qkv, heads, out, statistics, d_output, dqkv, dtype());
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(2 * block_size(d.sequence));
      parallel_each(d.batch * heads, 1, [&](std::int64_t index, int thread) {
        attend_backward(d, qkv.as<const T>(), index, memory + 2 * thread * block_size(d.sequence), out.as<const T>(),
                        statistics.as<const T>(), d_output.as<const T>(), dqkv.as<T>());
      });
    });
  }
};

}  // namespace

std::unique_ptr<AttentionOps> AttentionOps::on_cpu(Device& device) { return std::make_unique<CpuAttention>(device); }

}  // namespace ddptrain
