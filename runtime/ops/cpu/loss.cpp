#include <algorithm>
#include <cmath>
#include <limits>

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/softmax_statistics.h"

namespace ddptrain {

namespace {

/// The factor of a prediction's gradient.
template <class T>
T scale_for(double loss, float gradient_scale) {
  return std::isfinite(loss) ? static_cast<T>(gradient_scale) : std::numeric_limits<T>::quiet_NaN();
}

/// Target of the prediction at `place` of the batch.
std::uint32_t target_at(const std::vector<std::uint32_t>& tokens, std::int64_t sequence, std::int64_t place) {
  return tokens[static_cast<std::size_t>(place / sequence * (sequence + 1) + place % sequence + 1)];
}

void add(const std::vector<MetricSums>& partial, std::int64_t rows, StepRef step, MetricSums* sums) {
  for (const MetricSums& part : partial) {
    sums->loss += part.loss;
    sums->correct += part.correct;
  }
  sums->samples += static_cast<std::uint64_t>(rows);
  step.note_sums(sums);
}

/// exponentials = exp(logits - largest). With some instruction sets Eigen's exp(-infinity) is a small number.
template <class T>
void exponentiate(const RowView<T>& logits, T largest, RowView<T>& exponentials) {
  exponentials = (logits - largest).exp();
  exponentials = (exponentials < std::numeric_limits<T>::min()).select(T{0}, exponentials);
}

/// Whether the target is the first of the largest logits.
template <class T>
bool is_hit(const RowView<T>& logits, std::uint32_t target, T largest) {
  return logits[target] == largest && (target == 0 || logits.head(target).maxCoeff() < largest);
}

class CpuLoss final : public LossOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void token_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                           std::int64_t vocabulary, float gradient_scale, const Tensor& dlogits,
                           MetricSums* sums) override {
    const MatrixShape s =
        check_predictions("token_cross_entropy", logits, batch, first_row, vocabulary, {}, dlogits, dtype());
    const std::int64_t rows = s.rows;
    const std::int64_t columns = s.columns;
    const std::int64_t sequence = batch.source.sequence;
    const std::vector<std::uint32_t> tokens = batch_tokens("token_cross_entropy", batch, vocabulary);
    std::vector<MetricSums> partial(static_cast<std::size_t>(threads()));
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(vocabulary);
      parallel_each(rows, 64, [&](std::int64_t row, int thread) {
        const std::uint32_t target = target_at(tokens, sequence, first_row + row);
        const RowView<T> values(logits.as<T>() + row * columns, vocabulary);
        T* gradient = dlogits ? dlogits.as<T>() + row * columns : nullptr;
        RowView<T> exponentials(dlogits ? gradient : memory + thread * vocabulary, vocabulary);
        const T largest = values.maxCoeff();
        const T target_value = values[target];
        MetricSums& mine = partial[static_cast<std::size_t>(thread)];
        mine.correct += is_hit(values, target, largest) ? 1 : 0;
        exponentiate(values, largest, exponentials);
        const T total = exponentials.sum();
        const auto loss = static_cast<double>(std::log(total) + largest - target_value);
        mine.loss += loss;
        if (!dlogits) return;
        const T scale = scale_for<T>(loss, gradient_scale);
        exponentials *= scale / total;
        gradient[target] -= scale;
        std::fill(gradient + vocabulary, gradient + columns, T{0});
      });
    });
    add(partial, rows, batch.step, sums);
  }

  void partial_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                             std::int64_t vocabulary, const Tensor& statistics) override {
    const MatrixShape s =
        check_predictions("partial_cross_entropy", logits, batch, first_row, vocabulary, statistics, {}, dtype());
    const std::int64_t rows = s.rows;
    const std::int64_t columns = s.columns;
    const std::int64_t sequence = batch.source.sequence;
    const std::vector<std::uint32_t> tokens = batch_tokens("partial_cross_entropy", batch, vocabulary);
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(vocabulary);
      parallel_each(rows, 64, [&](std::int64_t row, int thread) {
        const RowView<T> mine(logits.as<T>() + row * columns, vocabulary);
        RowView<T> exponentials(memory + thread * vocabulary, vocabulary);
        const std::uint32_t target = batch.vocabulary_slice.row(target_at(tokens, sequence, first_row + row));
        const bool has_target = target < vocabulary;
        const T largest = mine.maxCoeff();
        exponentiate(mine, largest, exponentials);
        T* out = statistics.as<T>() + row * kSoftmaxStatistics;
        out[0] = largest;
        out[1] = exponentials.sum();
        out[2] = has_target ? mine[target] : T{0};
        out[3] = has_target && is_hit(mine, target, largest) ? T{1} : T{0};
      });
    });
  }

  void combined_cross_entropy(const Tensor& logits, const TokenBatch& batch, std::int64_t first_row,
                              std::int64_t vocabulary, const Tensor& statistics, float gradient_scale,
                              const Tensor& dlogits, MetricSums* sums) override {
    const MatrixShape s =
        check_predictions("combined_cross_entropy", logits, batch, first_row, vocabulary, statistics, dlogits, dtype());
    const std::int64_t rows = s.rows;
    const std::int64_t columns = s.columns;
    const std::int64_t sequence = batch.source.sequence;
    const std::vector<std::uint32_t> tokens = batch_tokens("combined_cross_entropy", batch, vocabulary);
    std::vector<MetricSums> partial(static_cast<std::size_t>(threads()));
    with_scalar([&]<class T>(T) {
      parallel_each(rows, 64, [&](std::int64_t row, int thread) {
        const CombinedSoftmax<T> all(statistics.as<T>() + row * kSoftmaxStatistics, statistics.dim(0),
                                     rows * kSoftmaxStatistics);
        MetricSums& mine = partial[static_cast<std::size_t>(thread)];
        mine.loss += all.loss();
        mine.correct += all.hit ? 1 : 0;
        if (!dlogits) return;
        T* gradient = dlogits.as<T>() + row * columns;
        RowView<T> exponentials(gradient, vocabulary);
        exponentiate<T>({logits.as<T>() + row * columns, vocabulary}, all.largest, exponentials);
        const T scale = scale_for<T>(all.loss(), gradient_scale);
        exponentials *= scale / all.total;
        const std::uint32_t target = batch.vocabulary_slice.row(target_at(tokens, sequence, first_row + row));
        if (target < vocabulary) gradient[target] -= scale;
        std::fill(gradient + vocabulary, gradient + columns, T{0});
      });
    });
    add(partial, rows, batch.step, sums);
  }

  void softmax_cross_entropy(const Tensor& logits, const ImageBatch& batch, float gradient_scale, const Tensor& dlogits,
                             MetricSums* sums) override {
    const std::int64_t classes = check_softmax_cross_entropy(logits, batch, dlogits, dtype()).columns;
    with_scalar([&]<class T>(T) {
      RowArray<T> probabilities(classes);
      for (std::int64_t row = 0; row < batch.count; ++row) {
        const std::uint32_t sample = sample_index(batch.order, batch.step.value(), static_cast<std::uint32_t>(row));
        const std::uint8_t label = batch.labels.as<std::uint8_t>()[sample];
        DDP_CHECK(label < classes, "softmax_cross_entropy: label {} of sample {} is not below {}", label, sample,
                  classes);
        const ConstRowView<T> values(logits.as<T>() + row * classes, classes);
        Eigen::Index best = 0;
        const T largest = values.maxCoeff(&best);
        const T label_value = values[label];
        probabilities = (values - largest).exp();
        const T total = probabilities.sum();
        const auto loss = static_cast<double>(std::log(total) + largest - label_value);
        sums->loss += loss;
        sums->correct += best == label ? 1 : 0;
        if (!dlogits) continue;
        RowView<T> gradient(dlogits.as<T>() + row * classes, classes);
        const T scale = scale_for<T>(loss, gradient_scale);
        gradient = probabilities * (scale / total);
        gradient[label] -= scale;
      }
    });
    sums->samples += static_cast<std::uint64_t>(batch.count);
    batch.step.note_sums(sums);
  }

  void likeliest_token(const Tensor& logits, LikeliestToken* likeliest) override {
    expect_tensor("likeliest_token", "logits", logits, dtype(), {logits.size()});
    with_scalar([&]<class T>(T) {
      const T* const begin = logits.as<T>();
      const T* const end = begin + logits.size();
      likeliest->token = static_cast<std::uint32_t>(std::max_element(begin, end) - begin);
      likeliest->all_finite = std::all_of(begin, end, [](T logit) { return std::isfinite(logit); }) ? 1 : 0;
    });
  }
};

}  // namespace

std::unique_ptr<LossOps> LossOps::on_cpu(Device& device) { return std::make_unique<CpuLoss>(device); }

}  // namespace ddptrain
