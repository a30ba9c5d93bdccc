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
    DDP_CHECK(!y.shape.empty() && y.shape.back() > 0, "bias_relu_backward: y has no columns");
    const std::int64_t columns = y.shape.back();
    const std::int64_t rows = y.size() / columns;
    expect_tensor(y, "bias_relu_backward: y", dtype(), y.shape);
    expect_tensor(dy, "bias_relu_backward: dy", dtype(), y.shape);
    expect_tensor(dbias, "bias_relu_backward: dbias", dtype(), {columns});
    std::vector<double> partial(static_cast<std::size_t>(threads() * columns), 0.0);
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* block_sums = scratch<T>(columns);
      parallel_each((rows + kBlock - 1) / kBlock, 4, [&](std::int64_t block, int thread) {
        RowView<T> block_sum(block_sums + thread * columns, columns);
        block_sum.setZero();
        for (std::int64_t row = block * kBlock; row < std::min(rows, (block + 1) * kBlock); ++row) {
          relu_backward_row(y.as<T>() + row * columns, static_cast<T>(scale), columns, dy.as<T>() + row * columns,
                            block_sum.data());
        }
        RowView<double>(partial.data() + thread * columns, columns) += block_sum.template cast<double>();
      });
    });
    store_sums(partial, dbias, accumulate);
  }

  void bias_relu_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout) override {
    DDP_CHECK(x.shape.size() == 2, "bias_relu_dropout: x must have two dimensions");
    const std::int64_t features = x.dim(1);
    expect_tensor(x, "bias_relu_dropout: x", dtype(), x.shape);
    expect_tensor(bias, "bias_relu_dropout: bias", dtype(), {features});
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* memory = scratch<T>(features);
      parallel_each(x.dim(0), 64, [&](std::int64_t row, int thread) {
        RowView<T> factors(memory + thread * features, features);
        dropout_factors(dropout, static_cast<std::uint32_t>(row), features, factors.data());
        RowView<T> values(x.as<T>() + row * features, features);
        values = (values + ConstRowView<T>(bias.as<T>(), features)).max(T{0}) * factors;
      });
    });
  }

  void dropout(const Tensor& x, const Dropout& dropout, const Tensor& y) override {
    DDP_CHECK(!x.shape.empty() && x.dim(0) > 0, "dropout: x has no rows");
    expect_tensor(x, "dropout: x", dtype(), x.shape);
    expect_tensor(y, "dropout: y", dtype(), x.shape);
    const std::int64_t features = x.size() / x.dim(0);
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* memory = scratch<T>(features);
      parallel_each(x.dim(0), 16, [&](std::int64_t row, int thread) {
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
