// Backward of operations against finite differences of their forward, in double precision: where more rows or longer
// sequences take another way than those of the small models in tests/models/, whose gradients show all the others.

#include "runtime/ops/attention.h"
#include "runtime/ops/norm.h"
#include "tests/ops/check_gradients.h"

namespace ddptrain::tests {
namespace {

class GradientsTest : public ::testing::Test {
 protected:
  Bench bench() const { return Bench(*device_); }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64, {}, true, 2});
};

TEST_F(GradientsTest, LayerNorm) {
  const Shape x{3, 67, 21};
  const Values x0 = random_values(element_count(x), 1, -1.0, 2.0);
  const Values w0 = random_values(21, 2);
  const Values b0 = random_values(21, 3);
  const Values r = random_values(element_count(x), 4);
  Bench b = bench();
  const Tensor input = b.put(x0, x);
  const Tensor weight = b.put(w0, {21});
  const Tensor statistics = b.poisoned({3 * 67, 2});
  const Tensor dx = b.poisoned(x);
  const Tensor dw = b.poisoned({21});
  const Tensor db = b.poisoned({21});
  device_->get<NormOps>().layer_norm(input, weight, b.put(b0, {21}), kEpsilon, b.poisoned(x), statistics);
  device_->get<NormOps>().layer_norm_backward(input, weight, statistics, b.put(r, x), Tensor{}, dx, dw, db, Tensor{},
                                              false);
  check_gradients({{"x", x0, b.take(dx)}, {"weight", w0, b.take(dw)}, {"bias", b0, b.take(db)}},
                  [&](const std::vector<Values>& at) {
                    Bench forward = bench();
                    const Tensor y = forward.poisoned(x);
                    device_->get<NormOps>().layer_norm(forward.put(at[0], x), forward.put(at[1], {21}),
                                                       forward.put(at[2], {21}), kEpsilon, y,
                                                       forward.poisoned({3 * 67, 2}));
                    return dot(forward.take(y), r);
                  });
}

/// Sequences below, at and above a block of queries, and not a multiple of a vector.
TEST_F(GradientsTest, Attention) {
  constexpr std::int64_t kHeads = 3, kWidth = 12;
  for (const std::int64_t sequence : {1, 5, 64, 131}) {
    const Shape y{2, sequence, kWidth};
    const Shape x{2, sequence, 3 * kWidth};
    const Shape statistics_shape{2, kHeads, sequence};
    const Values x0 = random_values(element_count(x), 1, -2.0, 2.0);
    const Values r = random_values(element_count(y), 2);
    Bench b = bench();
    const Tensor qkv = b.put(x0, x);
    const Tensor out = b.poisoned(y);
    const Tensor statistics = b.poisoned(statistics_shape);
    const Tensor dqkv = b.poisoned(x);
    device_->get<AttentionOps>().attention(qkv, kHeads, out, statistics);
    device_->get<AttentionOps>().attention_backward(qkv, kHeads, out, statistics, b.put(r, y), dqkv);
    check_gradients({{"qkv of " + std::to_string(sequence), x0, b.take(dqkv)}}, [&](const std::vector<Values>& at) {
      Bench forward = bench();
      const Tensor again = forward.poisoned(y);
      device_->get<AttentionOps>().attention(forward.put(at[0], x), kHeads, again, forward.poisoned(statistics_shape));
      return dot(forward.take(again), r);
    });
  }
}

}  // namespace
}  // namespace ddptrain::tests
