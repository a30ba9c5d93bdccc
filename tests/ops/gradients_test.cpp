// Backward of every operation against finite differences of its forward, in double precision.

#include "runtime/ops/activation.h"
#include "runtime/ops/convolution.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/pool.h"
#include "tests/ops/check_gradients.h"

namespace ddptrain::tests {
namespace {

class GradientsTest : public ::testing::Test {
 protected:
  Bench bench() const { return Bench(*device_); }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64});
  StepState state_{7};
};

TEST_F(GradientsTest, Conv2d) {
  const Shape x{3, 7, 6, 2};
  const Shape w{4, 3, 3, 2};
  const Shape y{3, 5, 4, 4};
  const Values x0 = random_values(element_count(x), 1);
  const Values w0 = random_values(element_count(w), 2);
  const Values dy = random_values(element_count(y), 3);
  Bench b = bench();
  const Tensor dx = b.poisoned(x);
  const Tensor dw = b.poisoned(w);
  device_->get<ConvolutionOps>().conv2d_backward(b.put(x0, x), b.put(w0, w), b.put(dy, y), dx, dw, false);
  check_gradients({{"x", x0, b.take(dx)}, {"weight", w0, b.take(dw)}}, [&](const std::vector<Values>& at) {
    Bench forward = bench();
    const Tensor out = forward.poisoned(y);
    device_->get<ConvolutionOps>().conv2d(forward.put(at[0], x), forward.put(at[1], w), Tensor{}, out);
    return dot(forward.take(out), dy);
  });
}

TEST_F(GradientsTest, Conv2dWithBiasAndRelu) {
  const Shape x{2, 6, 5, 3};
  const Shape w{5, 3, 3, 3};
  const Shape y{2, 4, 3, 5};
  const Values x0 = random_values(element_count(x), 1);
  const Values w0 = random_values(element_count(w), 2);
  const Values b0 = random_values(5, 3);
  const Values r = random_values(element_count(y), 4);
  const auto forward = [&](Bench& b, const std::vector<Values>& at) {
    const Tensor out = b.poisoned(y);
    device_->get<ConvolutionOps>().conv2d(b.put(at[0], x), b.put(at[1], w), b.put(at[2], {5}), out);
    return out;
  };
  Bench b = bench();
  const Tensor out = forward(b, {x0, w0, b0});
  const Tensor dy = b.put(r, y);
  const Tensor dx = b.poisoned(x);
  const Tensor dw = b.poisoned(w);
  const Tensor db = b.poisoned({5});
  device_->get<ActivationOps>().bias_relu_backward(out, dy, 1.0f, db, false);
  device_->get<ConvolutionOps>().conv2d_backward(b.put(x0, x), b.put(w0, w), dy, dx, dw, false);
  check_gradients({{"x", x0, b.take(dx)}, {"weight", w0, b.take(dw)}, {"bias", b0, b.take(db)}},
                  [&](const std::vector<Values>& at) {
                    Bench again = bench();
                    return dot(again.take(forward(again, at)), r);
                  });
}

TEST_F(GradientsTest, BiasReluPoolDropout) {
  for (const float rate : {0.0f, 0.25f}) {
    const Shape x{3, 7, 6, 5};
    const Shape y{3, 3, 3, 5};
    const Dropout dropout{rate, 9, 1, 4, {&state_, 0}};
    const Values x0 = random_values(element_count(x), 1);
    const Values b0 = random_values(5, 2);
    const Values r = random_values(element_count(y), 3);
    Bench b = bench();
    const Tensor winner = b.poisoned_bytes(y);
    const Tensor dx = b.poisoned(x);
    const Tensor db = b.poisoned({5});
    device_->get<PoolOps>().bias_relu_pool_dropout(b.put(x0, x), b.put(b0, {5}), dropout, b.poisoned(y), winner);
    device_->get<PoolOps>().bias_relu_pool_dropout_backward(b.put(r, y), winner, dropout, dx, db, false);
    check_gradients({{"x", x0, b.take(dx)}, {"bias", b0, b.take(db)}}, [&](const std::vector<Values>& at) {
      Bench forward = bench();
      const Tensor out = forward.poisoned(y);
      device_->get<PoolOps>().bias_relu_pool_dropout(forward.put(at[0], x), forward.put(at[1], {5}), dropout, out,
                                                     forward.poisoned_bytes(y));
      return dot(forward.take(out), r);
    });
  }
}

TEST_F(GradientsTest, Linear) {
  const Values x0 = random_values(4 * 7, 1);
  const Values w0 = random_values(5 * 7, 2);
  const Values b0 = random_values(5, 3);
  const Values r = random_values(4 * 5, 4);
  Bench b = bench();
  const Tensor dx = b.poisoned({4, 7});
  const Tensor dw = b.poisoned({5, 7});
  const Tensor db = b.poisoned({5});
  device_->get<LinearOps>().linear_backward(b.put(x0, {4, 7}), b.put(w0, {5, 7}), b.put(r, {4, 5}), dx, dw, db, false);
  check_gradients({{"x", x0, b.take(dx)}, {"weight", w0, b.take(dw)}, {"bias", b0, b.take(db)}},
                  [&](const std::vector<Values>& at) {
                    Bench forward = bench();
                    const Tensor out = forward.poisoned({4, 5});
                    device_->get<LinearOps>().linear(forward.put(at[0], {4, 7}), forward.put(at[1], {5, 7}),
                                                     forward.put(at[2], {5}), out);
                    return dot(forward.take(out), r);
                  });
}

TEST_F(GradientsTest, BiasReluDropout) {
  for (const float rate : {0.0f, 0.5f}) {
    const Shape shape{6, 40};
    const Dropout dropout{rate, 9, 2, 0, {&state_, 1}};
    const Values x0 = random_values(element_count(shape), 1);
    const Values b0 = random_values(40, 2);
    const Values r = random_values(element_count(shape), 3);
    const auto forward = [&](Bench& b, const std::vector<Values>& at) {
      const Tensor x = b.put(at[0], shape);
      device_->get<ActivationOps>().bias_relu_dropout(x, b.put(at[1], {40}), dropout);
      return x;
    };
    Bench b = bench();
    const Tensor y = forward(b, {x0, b0});
    const Tensor dy = b.put(r, shape);
    const Tensor db = b.poisoned({40});
    device_->get<ActivationOps>().bias_relu_backward(y, dy, rate > 0.0f ? dropout.scale() : 1.0f, db, false);
    check_gradients({{"x", x0, b.take(dy)}, {"bias", b0, b.take(db)}}, [&](const std::vector<Values>& at) {
      Bench again = bench();
      return dot(again.take(forward(again, at)), r);
    });
  }
}

TEST_F(GradientsTest, SoftmaxCrossEntropy) {
  const Shape shape{6, 10};
  const Values x0 = random_values(element_count(shape), 1, -3.0, 3.0);
  Bench b = bench();
  const ImageBatch batch = make_batch(b, 6, 1, 1, 10);
  const Tensor gradient = b.poisoned(shape);
  MetricSums ignored;
  device_->get<LossOps>().softmax_cross_entropy(b.put(x0, shape), batch, 0.125f, gradient, &ignored);
  check_gradients({{"logits", x0, b.take(gradient)}}, [&](const std::vector<Values>& at) {
    Bench forward = bench();
    MetricSums sums;
    device_->get<LossOps>().softmax_cross_entropy(forward.put(at[0], shape), batch, 0.0f, Tensor{}, &sums);
    return sums.loss * 0.125;
  });
}

}  // namespace
}  // namespace ddptrain::tests
