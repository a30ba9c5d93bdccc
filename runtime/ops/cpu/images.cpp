#include "runtime/ops/images.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

constexpr std::uint8_t kNoWinner = 4;

/// One output pixel from the channels of its four inputs. Without branches, so that it vectorises.
template <class T>
void pool_pixel(const T* const (&window)[4], const T* __restrict bias, const T* __restrict factors,
                std::int64_t channels, T* __restrict out, std::uint8_t* __restrict winner) {
  const T* __restrict x0 = window[0];
  const T* __restrict x1 = window[1];
  const T* __restrict x2 = window[2];
  const T* __restrict x3 = window[3];
  for (std::int64_t c = 0; c < channels; ++c) {
    const T top = x0[c] > x1[c] ? x0[c] : x1[c];
    const T bottom = x2[c] > x3[c] ? x2[c] : x3[c];
    const T largest = top > bottom ? top : bottom;
    const int after0 = x0[c] != largest;
    const int after1 = after0 & static_cast<int>(x1[c] != largest);
    const int after2 = after1 & static_cast<int>(x2[c] != largest);
    const int at = after0 + after1 + after2;
    const T active = largest + bias[c];
    const T value = (active > T{0} ? active : T{0}) * factors[c];
    out[c] = value;
    winner[c] = static_cast<std::uint8_t>(value > T{0} ? at : kNoWinner);
  }
}

template <class T>
void unpool_pixel(const T* __restrict d_output, const std::uint8_t* __restrict winner, T scale, std::int64_t channels,
                  T* const (&window)[4], T* __restrict sum) {
  T* __restrict d0 = window[0];
  T* __restrict d1 = window[1];
  T* __restrict d2 = window[2];
  T* __restrict d3 = window[3];
  for (std::int64_t c = 0; c < channels; ++c) {
    const int at = winner[c];
    const T gradient = d_output[c] * scale;
    const T g0 = at == 0 ? gradient : T{0};
    const T g1 = at == 1 ? gradient : T{0};
    const T g2 = at == 2 ? gradient : T{0};
    const T g3 = at == 3 ? gradient : T{0};
    d0[c] = g0;
    d1[c] = g1;
    d2[c] = g2;
    d3[c] = g3;
    sum[c] += (g0 + g1) + (g2 + g3);
  }
}

/// Calls visit(out offset, input pointers of the window) for every output pixel of `image`.
template <class T, class Visit>
void for_each_window(const PoolShape& s, T* image, Visit&& visit) {
  std::uint32_t offset = 0;
  for (std::uint32_t y = 0; y + 1 < s.height; y += 2) {
    for (std::uint32_t x = 0; x + 1 < s.width; x += 2, offset += s.channels) {
      T* corner = image + (y * s.width + x) * s.channels;
      T* below = corner + s.width * s.channels;
      T* const window[4] = {corner, corner + s.channels, below, below + s.channels};
      visit(offset, window);
    }
  }
}

class CpuImages final : public ImageOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void gather_images(const ImageBatch& batch, const Tensor& out) override {
    const Tensor& images = batch.images;
    const std::int64_t pixels = check_gather_images(batch, out, dtype()).columns;
    with_scalar([&]<class T>(T) {
      parallel_each(batch.count, 64, [&](std::int64_t row, int) {
        const std::uint32_t sample = sample_index(batch.order, batch.step.value(), static_cast<std::uint32_t>(row));
        const std::uint8_t* from = images.as<std::uint8_t>() + sample * pixels;
        T* to = out.as<T>() + row * pixels;
        for (std::int64_t i = 0; i < pixels; ++i) to[i] = static_cast<T>(from[i]) / T{255};
      });
    });
  }

  void bias_relu_pool_dropout(const Tensor& x, const Tensor& bias, const Dropout& dropout, const Tensor& out,
                              const Tensor& winner) override {
    const PoolShape d = check_pool("bias_relu_pool_dropout", x, bias, out, winner, dtype());
    const std::int64_t size = static_cast<std::int64_t>(d.image());
    const std::int64_t features = d.features();
    const std::int64_t channels = d.channels;
    with_scalar([&]<class T>(T) {
      T* memory = scratch<T>(features);
      parallel_each(d.batch, 4, [&](std::int64_t image, int thread) {
        T* factors = memory + thread * features;
        dropout_factors(dropout, static_cast<std::uint32_t>(image), features, factors);
        T* to = out.as<T>() + image * features;
        std::uint8_t* to_winner = winner.as<std::uint8_t>() + image * features;
        const T* from = x.as<T>() + image * size;
        for_each_window(d, from, [&](std::uint32_t offset, const T* const(&window)[4]) {
          pool_pixel(window, bias.as<T>(), factors + offset, channels, to + offset, to_winner + offset);
        });
      });
    });
  }

  void bias_relu_pool_dropout_backward(const Tensor& d_output, const Tensor& winner, const Dropout& dropout,
                                       const Tensor& dx, const Tensor& dbias, bool accumulate) override {
    const PoolShape d = check_pool("bias_relu_pool_dropout_backward", dx, dbias, d_output, winner, dtype());
    const std::int64_t size = static_cast<std::int64_t>(d.image());
    const std::int64_t features = d.features();
    const std::int64_t channels = d.channels;
    std::vector<double> partial(static_cast<std::size_t>(threads() * channels), 0.0);
    with_scalar([&]<class T>(T) {
      const T scale = T{1} / (T{1} - static_cast<T>(dropout.rate));
      T* memory = scratch<T>(channels);
      parallel_each(d.batch, 4, [&](std::int64_t image, int thread) {
        RowView<T> image_sum(memory + thread * channels, channels);
        image_sum.setZero();
        T* to = dx.as<T>() + image * size;
        if (d.has_rest()) std::fill_n(to, d.image(), T{0});
        const T* from = d_output.as<T>() + image * features;
        const std::uint8_t* from_winner = winner.as<std::uint8_t>() + image * features;
        for_each_window(d, to, [&](std::uint32_t offset, T* const(&window)[4]) {
          unpool_pixel(from + offset, from_winner + offset, scale, channels, window, image_sum.data());
        });
        RowView<double>(partial.data() + thread * channels, channels) += image_sum.template cast<double>();
      });
    });
    store_sums(partial, dbias, accumulate);
  }
};

}  // namespace

std::unique_ptr<ImageOps> ImageOps::on_cpu(Device& device) { return std::make_unique<CpuImages>(device); }

}  // namespace ddptrain
