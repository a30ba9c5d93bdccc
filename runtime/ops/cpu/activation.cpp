#include "runtime/ops/activation.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 512;  // rows that are summed in the working precision

template <class T>
void relu_backward_row(const T* __restrict y, T scale, std::int64_t columns, T* __restrict dy, T* __restrict sum) {
  for (std::int64_t i = 0; i < columns; ++i) {
    const T gradient = y[i] > T{0} ? dy[i] * scale : T{0};
    dy[i] = gradient;
    sum[i] += gradient;
  }
}

class CpuActivation final : public ActivationOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void bias_relu_backward(const Tensor& y, const Tensor& dy, float scale, const Tensor& dbias,
                          bool accumulate) override {
    const MatrixShape s = check_activation("bias_relu_backward", y, dy, dbias, dtype());
    std::vector<double> partial(static_cast<std::size_t>(threads() * s.columns), 0.0);
    with_scalar([&]<class T>(T) {
      T* block_sums = scratch<T>(s.columns);
      parallel_each((s.rows + kBlock - 1) / kBlock, 4, [&](std::int64_t block, int thread) {
        RowView<T> block_sum(block_sums + thread * s.columns, s.columns);
        block_sum.setZero();
        for (std::int64_t row = block * kBlock; row < std::min(s.rows, (block + 1) * kBlock); ++row) {
          relu_backward_row(y.as<T>() + row * s.columns, static_cast<T>(scale), s.columns, dy.as<T>() + row * s.columns,
                            block_sum.data());
        }
        RowView<double>(partial.data() + thread * s.columns, s.columns) += block_sum.template cast<double>();
      });
    });
    store_sums(partial, dbias, accumulate);
  }

  void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) override {
    const MatrixShape s = check_activation("bias_relu_dropout", x, x, bias, dtype());
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(s.columns);
      parallel_each(s.rows, 64, [&](std::int64_t row, int thread) {
        RowView<T> factors(memory + thread * s.columns, s.columns);
        dropout_factors(dropout, static_cast<std::uint32_t>(row), s.columns, factors.data());
        RowView<T> values(x.as<T>() + row * s.columns, s.columns);
        values = (values + ConstRowView<T>(bias.as<T>(), s.columns)).max(T{0}) * factors;
      });
    });
  }

  void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) override {
    check_activation("dropout", x, y, {}, dtype());
    const std::int64_t samples = x.dim(0);
    const std::int64_t features = x.size() / std::max<std::int64_t>(1, samples);
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(features);
      parallel_each(samples, 16, [&](std::int64_t row, int thread) {
        RowView<T> factors(memory + thread * features, features);
        dropout_factors(dropout, static_cast<std::uint32_t>(row), features, factors.data());
        RowView<T>(y.as<T>() + row * features, features) =
            ConstRowView<T>(x.as<T>() + row * features, features) * factors;
      });
    });
  }
};

}  // namespace

std::unique_ptr<ActivationOps> ActivationOps::on_cpu(Device& device) { return std::make_unique<CpuActivation>(device); }

}  // namespace ddptrain
