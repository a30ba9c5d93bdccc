#include "runtime/ops/norm.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 64;  // rows whose parameter gradients are summed in the working precision

template <class T>
void normalise(const RowView<T>& x, const ConstRowView<T>& weight, const ConstRowView<T>& bias, T epsilon, RowView<T> y,
               T* statistics) {
  const T mean = x.mean();
  const T scale = T{1} / std::sqrt((x - mean).square().mean() + epsilon);
  y = (x - mean) * scale * weight + bias;
  statistics[0] = mean;
  statistics[1] = scale;
}

/// Adds to dweight, dbias and, if it is not null, dx_sums; dx may be the memory of dy or dresidual, which is null
/// if there is none.
template <class T>
void normalise_backward(const ConstRowView<T>& x, const ConstRowView<T>& weight, const T* statistics,
                        const ConstRowView<T>& dy, const T* dresidual, RowView<T> dx, RowView<T> dweight,
                        RowView<T> dbias, T* dx_sums) {
  const T mean = statistics[0];
  const T scale = statistics[1];
  const auto normalised = (x - mean) * scale;
  dweight += dy * normalised;
  dbias += dy;
  const T offset = (dy * weight).mean();
  const T slope = (dy * weight * normalised).mean();
  const auto gradient = (dy * weight - offset - normalised * slope) * scale;
  if (dresidual != nullptr) {
    dx = gradient + ConstRowView<T>(dresidual, x.size());
  } else {
    dx = gradient;
  }
  if (dx_sums != nullptr) RowView<T>(dx_sums, x.size()) += dx;
}

class CpuNorm final : public NormOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, float epsilon, const Tensor& y,
                  const Tensor& statistics) override {
    const MatrixShape s = check_layer_norm("layer_norm", x, weight, bias, y, statistics, dtype());
    with_scalar([&]<class T>(T) {
      const ConstRowView<T> w(weight.as<T>(), s.columns);
      const ConstRowView<T> b(bias.as<T>(), s.columns);
      parallel_each(s.rows, 1024, [&](std::int64_t row, int) {
        normalise<T>(RowView<T>(x.as<T>() + row * s.columns, s.columns), w, b, static_cast<T>(epsilon),
                     RowView<T>(y.as<T>() + row * s.columns, s.columns), statistics.as<T>() + 2 * row);
      });
    });
  }

  void add_layer_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                      const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                      const Tensor& statistics) override {
    const MatrixShape s = check_add_layer_norm(residual, branch, dropout, weight, bias, sum, y, statistics, dtype());
    const Tensor of_branch = add_up(branch);
    const bool drops = dropout.rate > 0.0f;
    const std::int64_t samples = drops ? sum.dim(0) : s.rows;
    const std::int64_t features = sum.size() / samples;
    with_scalar([&]<class T>(T) {
      const ConstRowView<T> w(weight.as<T>(), s.columns);
      const ConstRowView<T> b(bias.as<T>(), s.columns);
      const std::int64_t drawn = dropout.first + features;
      T* memory = drops ? scratch<T>(drawn) : nullptr;
      parallel_each(samples, std::max<std::int64_t>(1, 1024 * s.columns / features),
                    [&](std::int64_t sample, int thread) {
                      T* factors = memory + thread * drawn;
                      if (drops) dropout_factors(dropout, static_cast<std::uint32_t>(sample), drawn, factors);
                      factors += dropout.first;
                      for (std::int64_t i = 0; i < features; i += s.columns) {
                        const std::int64_t at = sample * features + i;
                        RowView<T> total(sum.as<T>() + at, s.columns);
                        const ConstRowView<T> added(of_branch.as<T>() + at, s.columns);
                        total = ConstRowView<T>(residual.as<T>() + at, s.columns);
                        if (drops) {
                          total += added * ConstRowView<T>(factors + i, s.columns);
                        } else {
                          total += added;
                        }
                        normalise<T>(total, w, b, static_cast<T>(epsilon), RowView<T>(y.as<T>() + at, s.columns),
                                     statistics.as<T>() + 2 * (at / s.columns));
                      }
                    });
    });
  }

  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& gradient,
                           const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor& dx_sums, bool accumulate) override {
    const MatrixShape s =
        check_layer_norm_backward(x, weight, statistics, gradient, dresidual, dx, dweight, dbias, dx_sums, dtype());
    const Tensor dy = add_up(gradient);
    std::vector<double> weight_sums(static_cast<std::size_t>(threads() * s.columns), 0.0);
    std::vector<double> bias_sums(weight_sums.size(), 0.0);
    std::vector<double> sums_of_dx(weight_sums.size(), 0.0);
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(3 * s.columns);
      const ConstRowView<T> w(weight.as<T>(), s.columns);
      parallel_each((s.rows + kBlock - 1) / kBlock, 16, [&](std::int64_t block, int thread) {
        RowView<T> weight_sum(memory + 3 * thread * s.columns, s.columns);
        RowView<T> bias_sum(weight_sum.data() + s.columns, s.columns);
        RowView<T> dx_sum(bias_sum.data() + s.columns, s.columns);
        weight_sum.setZero();
        bias_sum.setZero();
        dx_sum.setZero();
        for (std::int64_t row = block * kBlock; row < std::min(s.rows, (block + 1) * kBlock); ++row) {
          const std::int64_t at = row * s.columns;
          normalise_backward<T>({x.as<T>() + at, s.columns}, w, statistics.as<T>() + 2 * row,
                                {dy.as<T>() + at, s.columns}, dresidual ? dresidual.as<T>() + at : nullptr,
                                {dx.as<T>() + at, s.columns}, weight_sum, bias_sum, dx_sums ? dx_sum.data() : nullptr);
        }
        RowView<double>(weight_sums.data() + thread * s.columns, s.columns) += weight_sum.template cast<double>();
        RowView<double>(bias_sums.data() + thread * s.columns, s.columns) += bias_sum.template cast<double>();
        RowView<double>(sums_of_dx.data() + thread * s.columns, s.columns) += dx_sum.template cast<double>();
      });
    });
    store_sums(weight_sums, dweight, accumulate);
    store_sums(bias_sums, dbias, accumulate);
    if (dx_sums) store_sums(sums_of_dx, dx_sums, accumulate);
  }
};

}  // namespace

std::unique_ptr<NormOps> NormOps::on_cpu(Device& device) { return std::make_unique<CpuNorm>(device); }

}  // namespace ddptrain
