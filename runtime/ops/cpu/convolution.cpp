#include "runtime/ops/convolution.h"

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

struct ConvDims : ConvShape {
  std::int64_t rows() const { return out_height() * out_width(); }  ///< Output pixels of an image.
  std::int64_t depth() const { return kernel * kernel * in; }       ///< Inputs of an output pixel.
  std::int64_t run() const { return kernel * in; }                  ///< Contiguous inputs.
  std::int64_t image() const { return height * width * in; }
};

/// col [rows, depth]: the inputs of every output pixel of one image.
template <class T>
void im2col(const ConvDims& d, const T* x, T* col) {
  for (std::int64_t oy = 0; oy < d.out_height(); ++oy) {
    for (std::int64_t ox = 0; ox < d.out_width(); ++ox) {
      for (std::int64_t ky = 0; ky < d.kernel; ++ky, col += d.run()) {
        RowView<T>(col, d.run()) = ConstRowView<T>(x + ((oy + ky) * d.width + ox) * d.in, d.run());
      }
    }
  }
}

/// The transpose of im2col: adds every element of col to the input it came from.
template <class T>
void col2im(const ConvDims& d, const T* col, T* x) {
  RowView<T>(x, d.image()).setZero();
  for (std::int64_t oy = 0; oy < d.out_height(); ++oy) {
    for (std::int64_t ox = 0; ox < d.out_width(); ++ox) {
      for (std::int64_t ky = 0; ky < d.kernel; ++ky, col += d.run()) {
        RowView<T>(x + ((oy + ky) * d.width + ox) * d.in, d.run()) += ConstRowView<T>(col, d.run());
      }
    }
  }
}

template <class T>
void add_bias_relu(const T* bias, std::int64_t rows, std::int64_t columns, T* y) {
  const ConstRowView<T> b(bias, columns);
  for (std::int64_t row = 0; row < rows; ++row) {
    RowView<T> values(y + row * columns, columns);
    values = (values + b).max(T{0});
  }
}

class CpuConvolution final : public ConvolutionOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const ConvDims d{check_conv2d("conv2d", x, weight, bias, y, dtype())};
    with_scalar([&]<class T>(T) {
      T* col = scratch<T>(d.rows() * d.depth());
      const ConstMatrixView<T> w(weight.as<T>(), d.out, d.depth());
      parallel_each(d.batch, 1, [&](std::int64_t image, int thread) {
        T* mine = col + thread * d.rows() * d.depth();
        T* out = y.as<T>() + image * d.rows() * d.out;
        im2col(d, x.as<T>() + image * d.image(), mine);
        MatrixView<T>(out, d.rows(), d.out).noalias() = ConstMatrixView<T>(mine, d.rows(), d.depth()) * w.transpose();
        if (bias) add_bias_relu(bias.as<T>(), d.rows(), d.out, out);
      });
    });
  }

  void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       bool accumulate) override {
    const ConvDims d{check_conv2d_backward(x, weight, dy, dx, dweight, dtype())};
    with_scalar([&]<class T>(T) {
      const std::int64_t col_size = d.rows() * d.depth();
      const std::int64_t weight_size = d.out * d.depth();
      T* memory = scratch<T>(col_size + weight_size);
      const ConstMatrixView<T> w(weight.as<T>(), d.out, d.depth());
      parallel(threads(), [&](std::int64_t begin, std::int64_t end, int) {
        for (std::int64_t thread = begin; thread < end; ++thread) {
          RowView<T>(memory + thread * (col_size + weight_size) + col_size, weight_size).setZero();
        }
      });
      parallel_each(d.batch, 1, [&](std::int64_t image, int thread) {
        T* col = memory + thread * (col_size + weight_size);
        const ConstMatrixView<T> gradient(dy.as<T>() + image * d.rows() * d.out, d.rows(), d.out);
        im2col(d, x.as<T>() + image * d.image(), col);
        MatrixView<T>(col + col_size, d.out, d.depth()).noalias() +=
            gradient.transpose() * ConstMatrixView<T>(col, d.rows(), d.depth());
        if (!dx) return;
        MatrixView<T>(col, d.rows(), d.depth()).noalias() = gradient * w;
        col2im(d, col, dx.as<T>() + image * d.image());
      });
      RowView<T> sum(dweight.as<T>(), weight_size);
      if (!accumulate) sum.setZero();
      for (int thread = 0; thread < threads(); ++thread) {
        sum += ConstRowView<T>(memory + thread * (col_size + weight_size) + col_size, weight_size);
      }
    });
  }
};

}  // namespace

std::unique_ptr<ConvolutionOps> ConvolutionOps::on_cpu(Device& device) {
  return std::make_unique<CpuConvolution>(device);
}

}  // namespace ddptrain
