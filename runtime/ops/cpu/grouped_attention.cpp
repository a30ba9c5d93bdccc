#include "runtime/ops/grouped_attention.h"

#include <cmath>

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

/// One head of a window: [sequence, head size], whose rows are `stride` elements apart.
template <class T>
ConstStridedView<T> head_of(const T* first, const GroupedAttentionShape& d, std::int64_t stride) {
  return ConstStridedView<T>(first, d.sequence, d.heads.head_size, Eigen::OuterStride<>(stride));
}
template <class T>
StridedView<T> mutable_head_of(T* first, const GroupedAttentionShape& d, std::int64_t stride) {
  return StridedView<T>(first, d.sequence, d.heads.head_size, Eigen::OuterStride<>(stride));
}

/// Attention of one group of heads in one window.
template <class T>
struct Group {
  const GroupedAttentionShape& d;
  std::int64_t index;  ///< Counts groups, window by window.
  Matrix<T>& memory;   ///< [sequence, sequence]
  Matrix<T>& dmemory;  ///< The same, for the backward pass.

  std::int64_t size() const { return d.heads.head_size; }
  std::int64_t columns() const { return d.heads.columns(); }
  std::int64_t width() const { return d.heads.width(); }
  T scale() const { return T{1} / std::sqrt(static_cast<T>(size())); }
  std::int64_t window() const { return index / d.heads.key_heads; }
  std::int64_t group() const { return index % d.heads.key_heads; }
  /// Head number `query` of this group.
  std::int64_t head(std::int64_t query) const { return group() * d.heads.queries() + query; }
  /// Where the window begins in qkv.
  std::int64_t qkv_begin() const { return window() * d.sequence * columns(); }
  std::int64_t out_begin(std::int64_t head) const { return window() * d.sequence * width() + head * size(); }
  std::int64_t statistics_begin(std::int64_t head) const { return (window() * d.heads.heads + head) * d.sequence; }

  void attend(const T* qkv, T* out, T* statistics) const {
    const T* first = qkv + qkv_begin();
    const auto k = head_of(first + d.heads.key_column(group()), d, columns());
    const auto v = head_of(first + d.heads.value_column(group()), d, columns());
    for (std::int64_t head = this->head(0); head < this->head(d.heads.queries()); ++head) {
      const auto q = head_of(first + d.heads.query_column(head), d, columns());
      memory.noalias() = q * k.transpose();
      for (std::int64_t i = 0; i < d.sequence; ++i) {
        auto visible = memory.row(i).head(i + 1).array();
        const T largest = visible.maxCoeff() * scale();
        visible = (visible * scale() - largest).exp();
        const T sum = visible.sum();
        visible /= sum;
        memory.row(i).tail(d.sequence - i - 1).setZero();
        statistics[statistics_begin(head) + i] = largest + std::log(sum);
      }
      mutable_head_of(out + out_begin(head), d, width()).noalias() = memory * v;
    }
  }

  void attend_backward(const T* qkv, const T* out, const T* statistics, const T* d_output, T* dqkv) const {
    const T* first = qkv + qkv_begin();
    T* dfirst = dqkv + qkv_begin();
    const auto k = head_of(first + d.heads.key_column(group()), d, columns());
    const auto v = head_of(first + d.heads.value_column(group()), d, columns());
    auto dk = mutable_head_of(dfirst + d.heads.key_column(group()), d, columns());
    auto dv = mutable_head_of(dfirst + d.heads.value_column(group()), d, columns());
    dk.setZero();
    dv.setZero();
    for (std::int64_t head = this->head(0); head < this->head(d.heads.queries()); ++head) {
      const auto q = head_of(first + d.heads.query_column(head), d, columns());
      const auto y = head_of(out + out_begin(head), d, width());
      const auto dy = head_of(d_output + out_begin(head), d, width());
      memory.noalias() = q * k.transpose();
      for (std::int64_t i = 0; i < d.sequence; ++i) {
        auto visible = memory.row(i).head(i + 1).array();
        visible = (visible * scale() - statistics[statistics_begin(head) + i]).exp();
        memory.row(i).tail(d.sequence - i - 1).setZero();
      }
      dv.noalias() += memory.transpose() * dy;
      dmemory.noalias() = dy * v.transpose();
      for (std::int64_t i = 0; i < d.sequence; ++i) {
        auto row = dmemory.row(i).array();
        row = (row - dy.row(i).dot(y.row(i))) * memory.row(i).array() * scale();
      }
      mutable_head_of(dfirst + d.heads.query_column(head), d, columns()).noalias() = dmemory * k;
      dk.noalias() += dmemory.transpose() * q;
    }
  }
};

class CpuGroupedAttention final : public GroupedAttentionOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void attention(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out, const Tensor& statistics) override {
    const GroupedAttentionShape d =
        check_grouped_attention("grouped attention", qkv, heads, out, statistics, {}, {}, dtype());
    with_scalar([&]<class T>(T) {
      for_each_group<T>(
          d, [&](const Group<T>& group) { group.attend(qkv.as<const T>(), out.as<T>(), statistics.as<T>()); });
    });
  }

  void attention_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& out, const Tensor& statistics,
                          const Tensor& d_output, const Tensor& dqkv) override {
    const GroupedAttentionShape d =
        check_grouped_attention("grouped attention_backward", qkv, heads, out, statistics, d_output, dqkv, dtype());
    with_scalar([&]<class T>(T) {
      for_each_group<T>(d, [&](const Group<T>& group) {
        group.attend_backward(qkv.as<const T>(), out.as<const T>(), statistics.as<const T>(), d_output.as<const T>(),
                              dqkv.as<T>());
      });
    });
  }

  void rotate(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
              const std::int64_t* first_position, Turn turn) override {
    const GroupedAttentionShape d = check_rotate(qkv, heads, frequencies, dtype());
    const std::int64_t first = first_position != nullptr ? *first_position : 0;
    const std::int64_t half = frequencies ? heads.head_size / 2 : 0;
    const std::int64_t columns = heads.columns();
    with_scalar([&]<class T>(T) {
      T* const memory = scratch<T>(2 * half + columns);
      parallel_each(d.batch * d.sequence, 64, [&](std::int64_t row, int thread) {
        RowView<T> cosine(memory + thread * (2 * half + columns), half);
        RowView<T> sine(cosine.data() + half, half);
        RowView<T> before(sine.data() + half, columns);
        const T position = static_cast<T>(first + row % d.sequence);
        const RowArray<T> angle = position * ConstRowView<T>(frequencies.as<T>(), half);
        cosine = angle.cos();
        sine = angle.sin() * static_cast<T>(turn == Turn::forward ? 1 : -1);
        RowView<T> after(qkv.as<T>() + row * columns, columns);
        before = after;
        for_each_head(heads, [&](std::int64_t by_group, std::int64_t by_kind, bool is_value) {
          const std::int64_t from = turn == Turn::forward ? by_group : by_kind;
          const std::int64_t to = turn == Turn::forward ? by_kind : by_group;
          if (is_value || half == 0) {
            after.segment(to, heads.head_size) = before.segment(from, heads.head_size);
            return;
          }
          const auto low = before.segment(from, half);
          const auto high = before.segment(from + half, half);
          after.segment(to, half) = low * cosine - high * sine;
          after.segment(to + half, half) = high * cosine + low * sine;
        });
      });
    });
  }

  void normalise(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight, const Tensor& key_weight,
                 float epsilon, const Tensor& y, const Tensor& statistics) override {
    const GroupedAttentionShape d =
        check_normalise("normalise", qkv, heads, query_weight, key_weight, y, statistics, dtype());
    const std::int64_t turned = heads.key_heads * (heads.queries() + 1);
    with_scalar([&]<class T>(T) {
      parallel_each(d.batch * d.sequence, 64, [&](std::int64_t row, int) {
        const std::int64_t at = row * heads.columns();
        RowView<T>(y.as<T>() + at, heads.columns()) = ConstRowView<T>(qkv.as<T>() + at, heads.columns());
        for_each_turned_head(heads, [&](std::int64_t number, std::int64_t in_group, std::int64_t column) {
          RowView<T> values(y.as<T>() + at + column, heads.head_size);
          const T scale = T{1} / std::sqrt(values.square().mean() + static_cast<T>(epsilon));
          const Tensor& weight = in_group < heads.queries() ? query_weight : key_weight;
          values *= scale * ConstRowView<T>(weight.as<T>(), heads.head_size);
          statistics.as<T>()[row * turned + number] = scale;
        });
      });
    });
  }

  void normalise_backward(const Tensor& qkv, const GroupedHeads& heads, const Tensor& query_weight,
                          const Tensor& key_weight, const Tensor& statistics, const Tensor& dqkv,
                          const Tensor& dquery_weight, const Tensor& dkey_weight, bool accumulate) override {
    const GroupedAttentionShape d =
        check_normalise("normalise_backward", qkv, heads, query_weight, key_weight, dqkv, statistics, dtype());
    const std::int64_t turned = heads.key_heads * (heads.queries() + 1);
    std::vector<double> query_sums(static_cast<std::size_t>(threads() * heads.head_size), 0.0);
    std::vector<double> key_sums(query_sums.size(), 0.0);
    with_scalar([&]<class T>(T) {
      parallel_each(d.batch * d.sequence, 64, [&](std::int64_t row, int thread) {
        for_each_turned_head(heads, [&](std::int64_t number, std::int64_t in_group, std::int64_t column) {
          const std::int64_t at = row * heads.columns() + column;
          const bool is_query = in_group < heads.queries();
          const T scale = statistics.as<T>()[row * turned + number];
          const ConstRowView<T> weight((is_query ? query_weight : key_weight).as<T>(), heads.head_size);
          const RowArray<T> normalised = ConstRowView<T>(qkv.as<T>() + at, heads.head_size) * scale;
          RowView<T> gradient(dqkv.as<T>() + at, heads.head_size);
          std::vector<double>& sums = is_query ? query_sums : key_sums;
          RowView<double>(sums.data() + thread * heads.head_size, heads.head_size) +=
              (gradient * normalised).template cast<double>();
          const T slope = (gradient * weight * normalised).mean();
          gradient = (gradient * weight - normalised * slope) * scale;
        });
      });
    });
    store_sums(query_sums, dquery_weight, accumulate);
    store_sums(key_sums, dkey_weight, accumulate);
  }

 private:
  template <class T, class Work>
  void for_each_group(const GroupedAttentionShape& d, const Work& work) {
    std::vector<Matrix<T>> memory(static_cast<std::size_t>(2 * threads()));
    for (Matrix<T>& matrix : memory) matrix.resize(d.sequence, d.sequence);
    parallel_each(d.batch * d.heads.key_heads, 1, [&](std::int64_t index, int thread) {
      const auto first = static_cast<std::size_t>(2 * thread);
      work(Group<T>{d, index, memory[first], memory[first + 1]});
    });
  }
  /// Calls work(first column group by group, first column kind by kind, whether it is a value) for each head.
  template <class Work>
  static void for_each_head(const GroupedHeads& heads, const Work& work) {
    for (std::int64_t group = 0; group < heads.key_heads; ++group) {
      const std::int64_t first = group * heads.group_columns();
      for (std::int64_t i = 0; i < heads.queries(); ++i) {
        work(first + i * heads.head_size, heads.query_column(group * heads.queries() + i), false);
      }
      work(first + heads.queries() * heads.head_size, heads.key_column(group), false);
      work(first + (heads.queries() + 1) * heads.head_size, heads.value_column(group), true);
    }
  }
  /// Calls work(number, index in its group, first column group by group) for each head of queries and of keys.
  template <class Work>
  static void for_each_turned_head(const GroupedHeads& heads, const Work& work) {
    for (std::int64_t group = 0; group < heads.key_heads; ++group) {
      for (std::int64_t head = 0; head <= heads.queries(); ++head) {
        work(group * (heads.queries() + 1) + head, head, group * heads.group_columns() + head * heads.head_size);
      }
    }
  }
};

}  // namespace

std::unique_ptr<GroupedAttentionOps> GroupedAttentionOps::on_cpu(Device& device) {
  return std::make_unique<CpuGroupedAttention>(device);
}

}  // namespace ddptrain
