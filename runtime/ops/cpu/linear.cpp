#include "runtime/device/cpu/cpu_device.h"
#include "runtime/ops/linear_dims.h"

namespace ddptrain {

void CpuDevice::linear(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) {
  const LinearDims d = check_linear(x, weight, bias, y, dtype());
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    const ConstMatrixView<T> w(weight.as<T>(), d.out, d.in);
    parallel(d.batch, [&](std::int64_t begin, std::int64_t end, int) {
      MatrixView<T> out(y.as<T>() + begin * d.out, end - begin, d.out);
      out.noalias() = ConstMatrixView<T>(x.as<T>() + begin * d.in, end - begin, d.in) * w.transpose();
      if (bias) out.array().rowwise() += ConstRowView<T>(bias.as<T>(), d.out);
    });
  });
  progress();
}

void CpuDevice::linear_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx,
                                const Tensor& dweight, const Tensor& dbias, bool accumulate) {
  const LinearDims d = check_linear_backward(x, weight, dy, dx, dweight, dbias, dtype());
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
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

void CpuDevice::sum_columns(const Tensor& dy, const Tensor& dbias, bool accumulate) {
  const std::int64_t rows = dy.dim(0), columns = dy.dim(1);
  expect_tensor(dbias, "sum_columns: dbias", dtype(), {columns});
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
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

}  // namespace ddptrain
