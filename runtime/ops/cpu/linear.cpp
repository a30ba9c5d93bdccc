#include <numbers>

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/linear.h"

namespace ddptrain {

namespace {

constexpr std::int64_t kBlock = 256;  // elements; whole vectors, so that a value does not depend on its place
template <class T>
using Block = Eigen::Array<T, kBlock, 1>;

constexpr double kInner = 2.0 * std::numbers::sqrt2 * std::numbers::inv_sqrtpi;  // 2 sqrt(2 / pi)
constexpr double kCubic = 0.044715;

/// s in gelu(x) = x s: (1 + tanh(u)) / 2 = 1 / (1 + exp(-2 u)) with u = sqrt(2 / pi) (x + 0.044715 x^3).
template <class T>
Block<T> gate(const Block<T>& x) {
  const auto inner = x * static_cast<T>(kInner) * (T{1} + static_cast<T>(kCubic) * x.square());
  return (T{1} + (-inner).exp()).inverse();
}

template <class T>
Block<T> gelu_of(const Block<T>& x) {
  return x * gate(x);
}

template <class T>
Block<T> gelu_slope(const Block<T>& x) {
  const Block<T> s = gate(x);
  return s + x * s * (T{1} - s) * static_cast<T>(kInner) * (T{1} + static_cast<T>(3 * kCubic) * x.square());
}

/// The block of `x` that starts at `begin`, filled up with zeros.
template <class T>
Block<T> load(const T* x, std::int64_t begin, std::int64_t count) {
  Block<T> block = Block<T>::Zero();
  std::copy_n(x + begin, count, block.data());
  return block;
}

class CpuLinear final : public LinearOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const LinearShape d = check_linear(x, weight, bias, y, dtype());
    with_scalar([&]<class T>(T) {
      const ConstMatrixView<T> w(weight.as<T>(), d.out, d.in);
      parallel(d.batch, [&](std::int64_t begin, std::int64_t end, int) {
        MatrixView<T> out(y.as<T>() + begin * d.out, end - begin, d.out);
        out.noalias() = ConstMatrixView<T>(x.as<T>() + begin * d.in, end - begin, d.in) * w.transpose();
        if (bias) out.array().rowwise() += ConstRowView<T>(bias.as<T>(), d.out);
      });
    });
    progress();
  }

  void linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       const Tensor& dbias, bool accumulate) override {
    const LinearShape d = check_linear_backward(x, weight, dy, dx, dweight, dbias, dtype());
    with_scalar([&]<class T>(T) {
      const ConstMatrixView<T> w(weight.as<T>(), d.out, d.in);
      const ConstMatrixView<T> gradient(dy.as<T>(), d.batch, d.out);
      if (dbias) sum_columns(dy, dbias, accumulate);
      if (dweight) {
        const ConstMatrixView<T> inputs(x.as<T>(), d.batch, d.in);
        MatrixView<T> weight_gradient(dweight.as<T>(), d.out, d.in);
        parallel(d.in, [&](std::int64_t begin, std::int64_t end, int) {
          auto columns = weight_gradient.middleCols(begin, end - begin);
          if (!accumulate) columns.setZero();
          columns.noalias() += gradient.transpose() * inputs.middleCols(begin, end - begin);
        });
      }
      progress();
      if (!dx) return;
      parallel(d.batch, [&](std::int64_t begin, std::int64_t end, int) {
        MatrixView<T>(dx.as<T>() + begin * d.in, end - begin, d.in).noalias() =
            gradient.middleRows(begin, end - begin) * w;
      });
    });
    progress();
  }

  void linear_gelu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre, const Tensor& y,
                   bool) override {
    linear(x, weight, bias, pre);
    gelu(pre, y);
  }

  void gelu(const Tensor& pre, const Tensor& y) override {
    check_gelu(pre, y, dtype());
    const std::int64_t size = pre.size();
    with_scalar([&]<class T>(T) {
      parallel_each((size + kBlock - 1) / kBlock, 4096, [&](std::int64_t block, int) {
        const std::int64_t begin = block * kBlock;
        const std::int64_t count = std::min(kBlock, size - begin);
        const Block<T> values = gelu_of<T>(load(pre.as<T>(), begin, count));
        std::copy_n(values.data(), count, y.as<T>() + begin);
      });
    });
  }

  void linear_gelu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& dpre,
                            const Tensor& dbias, bool accumulate) override {
    check_linear_gelu_backward(weight, dy, pre, dpre, dbias, dtype());
    linear_backward(Tensor{}, weight, dy, dpre, Tensor{}, Tensor{}, false);
    const std::int64_t size = pre.size();
    with_scalar([&]<class T>(T) {
      parallel_each((size + kBlock - 1) / kBlock, 4096, [&](std::int64_t block, int) {
        const std::int64_t begin = block * kBlock;
        const std::int64_t count = std::min(kBlock, size - begin);
        const Block<T> slope = gelu_slope<T>(load(pre.as<T>(), begin, count));
        RowView<T>(dpre.as<T>() + begin, count) *= slope.head(count).transpose();
      });
    });
    if (dbias) sum_columns(dpre, dbias, accumulate);
  }

  void linear_swiglu(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                     const Tensor& y) override {
    linear(x, weight, bias, pre);
    device_.get<GatedOps>().swiglu(pre, y);
  }

  void linear_swiglu_backward(const Tensor& weight, const Tensor& dy, const Tensor& pre, const Tensor& product,
                              const Tensor& dpre, const Tensor& y) override {
    linear_backward(Tensor{}, weight, dy, product, Tensor{}, Tensor{}, false);
    device_.get<GatedOps>().swiglu_backward(pre, product, dpre, y);
  }

  void norm_linear(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    linear(device_.get<RmsNormOps>().add_rms_norm(norm), weight, bias, y);
  }
  void norm_linear_swiglu(const AddedNorm& norm, const Tensor& weight, const Tensor& bias, const Tensor& pre,
                          const Tensor& y) override {
    linear_swiglu(device_.get<RmsNormOps>().add_rms_norm(norm), weight, bias, pre, y);
  }

 private:
  void sum_columns(const Tensor& dy, const Tensor& dbias, bool accumulate) {
    const std::int64_t rows = dy.dim(0);
    const std::int64_t columns = dy.dim(1);
    with_scalar([&]<class T>(T) {
      parallel(columns, [&](std::int64_t begin, std::int64_t end, int) {
        RowArray<double> sums = RowArray<double>::Zero(end - begin);
        for (std::int64_t row = 0; row < rows; ++row) {
          sums += ConstRowView<T>(dy.as<T>() + row * columns + begin, end - begin).template cast<double>();
        }
        RowView<T> out(dbias.as<T>() + begin, end - begin);
        if (!accumulate) out.setZero();
        out += sums.cast<T>();
      });
    });
  }
};

}  // namespace

std::unique_ptr<LinearOps> LinearOps::on_cpu(Device& device) { return std::make_unique<CpuLinear>(device); }

}  // namespace ddptrain
