#include "runtime/ops/rms_norm.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 64;  // rows whose parameter gradients are summed in the working precision

template <class T>
T inverse_rms(const RowView<T>& x, T epsilon) {
  return T{1} / std::sqrt(x.square().mean() + epsilon);
}

class CpuRmsNorm final : public RmsNormOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void rms_norm(const Tensor& x, const Tensor& weight, float epsilon, const Tensor& y,
                const Tensor& statistics) override {
    const MatrixShape s = check_rms_norm("rms_norm", x, weight, y, statistics, dtype());
    with_scalar([&]<class T>(T) {
      const ConstRowView<T> w(weight.as<T>(), s.columns);
      parallel_each(s.rows, 1024, [&](std::int64_t row, int) {
        const RowView<T> values(x.as<T>() + row * s.columns, s.columns);
        const T scale = inverse_rms<T>(values, static_cast<T>(epsilon));
        RowView<T>(y.as<T>() + row * s.columns, s.columns) = values * scale * w;
        statistics.as<T>()[row] = scale;
      });
    });
  }

  void add_rms_norm(const Tensor& residual, const Terms& branch, const Dropout& dropout, const Tensor& weight,
                    float epsilon, const Tensor& sum, const Tensor& y, const Tensor& statistics) override {
    check_add_rms_norm(residual, branch, dropout, weight, sum, y, statistics, dtype());
    const Tensor of_branch = add_up(branch);
    const std::int64_t samples = sum.dim(0);
    const std::int64_t features = sum.size() / samples;
    const bool drops = dropout.rate > 0.0f;
    with_scalar([&]<class T>(T) {
      const std::int64_t drawn = dropout.first + features;
      T* memory = drops ? scratch<T>(drawn) : nullptr;
      parallel_each(samples, 16, [&](std::int64_t sample, int thread) {
        const std::int64_t at = sample * features;
        RowView<T> total(sum.as<T>() + at, features);
        const ConstRowView<T> stream(residual.as<T>() + at, features);
        const ConstRowView<T> added(of_branch.as<T>() + at, features);
        if (drops) {
          T* factors = memory + thread * drawn;
          dropout_factors(dropout, static_cast<std::uint32_t>(sample), drawn, factors);
          total = stream + added * ConstRowView<T>(factors + dropout.first, features);
        } else {
          total = stream + added;
        }
      });
    });
    rms_norm(sum, weight, epsilon, y, statistics);
  }

  void rms_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Terms& gradient,
                         const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dx_sums,
                         bool accumulate) override {
    const MatrixShape s =
        check_rms_norm_backward(x, weight, statistics, gradient, dresidual, dx, dweight, dx_sums, dtype());
    const Tensor dy = add_up(gradient);
    std::vector<double> weight_sums(static_cast<std::size_t>(threads() * s.columns), 0.0);
    std::vector<double> sums_of_dx(weight_sums.size(), 0.0);
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(2 * s.columns);
      const ConstRowView<T> w(weight.as<T>(), s.columns);
      parallel_each((s.rows + kBlock - 1) / kBlock, 16, [&](std::int64_t block, int thread) {
        RowView<T> weight_sum(memory + 2 * thread * s.columns, s.columns);
        RowView<T> dx_sum(weight_sum.data() + s.columns, s.columns);
        weight_sum.setZero();
        dx_sum.setZero();
        for (std::int64_t row = block * kBlock; row < std::min(s.rows, (block + 1) * kBlock); ++row) {
          const std::int64_t at = row * s.columns;
          const T scale = statistics.as<T>()[row];
          const auto normalised = ConstRowView<T>(x.as<T>() + at, s.columns) * scale;
          const ConstRowView<T> gradient(dy.as<T>() + at, s.columns);
          weight_sum += gradient * normalised;
          const T slope = (gradient * w * normalised).mean();
          RowView<T> result(dx.as<T>() + at, s.columns);
          if (dresidual) {
            result = (gradient * w - normalised * slope) * scale + ConstRowView<T>(dresidual.as<T>() + at, s.columns);
          } else {
            result = (gradient * w - normalised * slope) * scale;
          }
          dx_sum += result;
        }
        RowView<double>(weight_sums.data() + thread * s.columns, s.columns) += weight_sum.template cast<double>();
        RowView<double>(sums_of_dx.data() + thread * s.columns, s.columns) += dx_sum.template cast<double>();
      });
    });
    store_sums(weight_sums, dweight, accumulate);
    if (dx_sums) store_sums(sums_of_dx, dx_sums, accumulate);
  }
};

}  // namespace

std::unique_ptr<RmsNormOps> RmsNormOps::on_cpu(Device& device) { return std::make_unique<CpuRmsNorm>(device); }

}  // namespace ddptrain
