#include "runtime/ops/norm.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 64;  // rows whose parameter gradients are summed in the working precision

struct NormDims {
  std::int64_t rows, width;
};

NormDims dims_of(const char* what, const Tensor& x, const Tensor& weight, const Tensor& statistics, DType dtype) {
  DDP_CHECK(!x.shape.empty() && x.shape.back() > 0, "{}: x has no columns", what);
  const NormDims d{x.size() / x.shape.back(), x.shape.back()};
  expect_tensor(x, what, dtype, x.shape);
  expect_tensor(weight, what, dtype, {d.width});
  expect_tensor(statistics, what, dtype, {d.rows, 2});
  return d;
}

template <class T>
void normalise(const RowView<T>& x, const ConstRowView<T>& weight, const ConstRowView<T>& bias, T epsilon, RowView<T> y,
               T* statistics) {
  const T mean = x.mean();
  const T scale = T{1} / std::sqrt((x - mean).square().mean() + epsilon);
  y = (x - mean) * scale * weight + bias;
  statistics[0] = mean;
  statistics[1] = scale;
}

/// Adds to dweight, dbias and, where it is not null, dx_sums; dx may be the memory of dy or dresidual, which is null
/// where there is none.
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
    const NormDims d = dims_of("layer_norm: x, weight, statistics", x, weight, statistics, dtype());
    expect_tensor(bias, "layer_norm: bias", dtype(), {d.width});
    expect_tensor(y, "layer_norm: y", dtype(), x.shape);
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      const ConstRowView<T> w(weight.as<T>(), d.width);
      const ConstRowView<T> b(bias.as<T>(), d.width);
      parallel_each(d.rows, 1024, [&](std::int64_t row, int) {
        normalise<T>(RowView<T>(x.as<T>() + row * d.width, d.width), w, b, static_cast<T>(epsilon),
                     RowView<T>(y.as<T>() + row * d.width, d.width), statistics.as<T>() + 2 * row);
      });
    });
  }

  void add_layer_norm(const Tensor& residual, const Tensor& branch, const Dropout& dropout, const Tensor& weight,
                      const Tensor& bias, float epsilon, const Tensor& sum, const Tensor& y,
                      const Tensor& statistics) override {
    const NormDims d = dims_of("add_layer_norm: sum, weight, statistics", sum, weight, statistics, dtype());
    expect_tensor(residual, "add_layer_norm: residual", dtype(), sum.shape);
    expect_tensor(branch, "add_layer_norm: branch", dtype(), sum.shape);
    expect_tensor(bias, "add_layer_norm: bias", dtype(), {d.width});
    expect_tensor(y, "add_layer_norm: y", dtype(), sum.shape);
    const bool drops = dropout.rate > 0.0f;
    const std::int64_t samples = drops ? sum.dim(0) : d.rows;
    const std::int64_t features = sum.size() / samples;
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      const ConstRowView<T> w(weight.as<T>(), d.width);
      const ConstRowView<T> b(bias.as<T>(), d.width);
      const std::int64_t drawn = dropout.first + features;
      T* memory = drops ? scratch<T>(drawn) : nullptr;
      parallel_each(samples, std::max<std::int64_t>(1, 1024 * d.width / features),
                    [&](std::int64_t sample, int thread) {
                      T* factors = memory + thread * drawn;
                      if (drops) dropout_factors(dropout, static_cast<std::uint32_t>(sample), drawn, factors);
                      factors += dropout.first;
                      for (std::int64_t i = 0; i < features; i += d.width) {
                        const std::int64_t at = sample * features + i;
                        RowView<T> total(sum.as<T>() + at, d.width);
                        const ConstRowView<T> added(branch.as<T>() + at, d.width);
                        total = ConstRowView<T>(residual.as<T>() + at, d.width);
                        if (drops) {
                          total += added * ConstRowView<T>(factors + i, d.width);
                        } else {
                          total += added;
                        }
                        normalise<T>(total, w, b, static_cast<T>(epsilon), RowView<T>(y.as<T>() + at, d.width),
                                     statistics.as<T>() + 2 * (at / d.width));
                      }
                    });
    });
  }

  void layer_norm_backward(const Tensor& x, const Tensor& weight, const Tensor& statistics, const Tensor& dy,
                           const Tensor& dresidual, const Tensor& dx, const Tensor& dweight, const Tensor& dbias,
                           const Tensor& dx_sums, bool accumulate) override {
    const NormDims d = dims_of("layer_norm_backward: x, weight, statistics", x, weight, statistics, dtype());
    expect_tensor(dy, "layer_norm_backward: dy", dtype(), x.shape);
    if (dresidual) expect_tensor(dresidual, "layer_norm_backward: dresidual", dtype(), x.shape);
    expect_tensor(dx, "layer_norm_backward: dx", dtype(), x.shape);
    expect_tensor(dweight, "layer_norm_backward: dweight", dtype(), {d.width});
    expect_tensor(dbias, "layer_norm_backward: dbias", dtype(), {d.width});
    if (dx_sums) expect_tensor(dx_sums, "layer_norm_backward: dx_sums", dtype(), {d.width});
    std::vector<double> weight_sums(static_cast<std::size_t>(threads() * d.width), 0.0);
    std::vector<double> bias_sums(weight_sums.size(), 0.0);
    std::vector<double> sums_of_dx(weight_sums.size(), 0.0);
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* memory = scratch<T>(3 * d.width);
      const ConstRowView<T> w(weight.as<T>(), d.width);
      parallel_each((d.rows + kBlock - 1) / kBlock, 16, [&](std::int64_t block, int thread) {
        RowView<T> weight_sum(memory + 3 * thread * d.width, d.width);
        RowView<T> bias_sum(weight_sum.data() + d.width, d.width);
        RowView<T> dx_sum(bias_sum.data() + d.width, d.width);
        weight_sum.setZero();
        bias_sum.setZero();
        dx_sum.setZero();
        for (std::int64_t row = block * kBlock; row < std::min(d.rows, (block + 1) * kBlock); ++row) {
          const std::int64_t at = row * d.width;
          normalise_backward<T>({x.as<T>() + at, d.width}, w, statistics.as<T>() + 2 * row, {dy.as<T>() + at, d.width},
                                dresidual ? dresidual.as<T>() + at : nullptr, {dx.as<T>() + at, d.width}, weight_sum,
                                bias_sum, dx_sums ? dx_sum.data() : nullptr);
        }
        RowView<double>(weight_sums.data() + thread * d.width, d.width) += weight_sum.template cast<double>();
        RowView<double>(bias_sums.data() + thread * d.width, d.width) += bias_sum.template cast<double>();
        RowView<double>(sums_of_dx.data() + thread * d.width, d.width) += dx_sum.template cast<double>();
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
