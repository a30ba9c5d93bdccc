// Backward of the operations of transformers against finite differences of their forward, in double precision.

#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "tests/ops/check_gradients.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

class TransformerGradientsTest : public ::testing::Test {
 protected:
  Bench bench() const { return Bench(*device_); }
  Dropout dropout(float rate) const { return {rate, 9, 1, 4, {&state_, 0}}; }

  std::unique_ptr<Device> device_ = make_cpu_device({Precision::fp64, {}, true, 2});
  StepState state_{7};
};

TEST_F(TransformerGradientsTest, EmbedTokens) {
  constexpr std::int64_t kBatch = 3, kSequence = 5, kWidth = 7, kVocabulary = 6, kPositions = 8;
  const Shape y{kBatch, kSequence, kWidth};
  const Values token0 = random_values(kVocabulary * kWidth, 1);
  const Values position0 = random_values(kPositions * kWidth, 2);
  const Values r = random_values(element_count(y), 3);
  const Values head(kVocabulary * kWidth, 0.0);
  for (const float rate : {0.0f, 0.25f}) {
    Bench b = bench();
    const TokenBatch batch = random_tokens(b, kBatch, kSequence, kVocabulary);
    const Tensor dtoken = b.poisoned({kVocabulary, kWidth});
    const Tensor dposition = b.put(Values(kPositions * kWidth, 0.0), {kPositions, kWidth});
    device_->get<EmbeddingOps>().embed_tokens_backward(batch, dropout(rate), b.put(r, y),
                                                       b.put(head, {kVocabulary, kWidth}), dtoken, dposition, false);
    check_gradients({{"token", token0, b.take(dtoken)}, {"position", position0, b.take(dposition)}},
                    [&](const std::vector<Values>& at) {
                      Bench forward = bench();
                      const Tensor out = forward.poisoned(y);
                      device_->get<EmbeddingOps>().embed_tokens(batch, forward.put(at[0], {kVocabulary, kWidth}),
                                                                forward.put(at[1], {kPositions, kWidth}), dropout(rate),
                                                                out);
                      return dot(forward.take(out), r);
                    });
  }
}

TEST_F(TransformerGradientsTest, LayerNorm) {
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

/// Both results count: the sum goes on as the next residual.
TEST_F(TransformerGradientsTest, AddLayerNorm) {
  const Shape x{4, 6, 10};
  const Values residual0 = random_values(element_count(x), 1);
  const Values branch0 = random_values(element_count(x), 2);
  const Values w0 = random_values(10, 3);
  const Values b0 = random_values(10, 4);
  const Values rsum = random_values(element_count(x), 5);
  const Values ry = random_values(element_count(x), 6);
  for (const float rate : {0.0f, 0.5f}) {
    const auto loss = [&](const std::vector<Values>& at) {
      Bench b = bench();
      const Tensor sum = b.poisoned(x);
      const Tensor y = b.poisoned(x);
      device_->get<NormOps>().add_layer_norm(b.put(at[0], x), b.put(at[1], x), dropout(rate), b.put(at[2], {10}),
                                             b.put(at[3], {10}), kEpsilon, sum, y, b.poisoned({24, 2}));
      return dot(b.take(sum), rsum) + dot(b.take(y), ry);
    };
    Bench b = bench();
    const Tensor sum = b.poisoned(x);
    const Tensor weight = b.put(w0, {10});
    const Tensor statistics = b.poisoned({24, 2});
    const Tensor dw = b.poisoned({10});
    const Tensor db = b.poisoned({10});
    const Tensor dresidual = b.put(rsum, x);
    const Tensor dbranch = b.poisoned(x);
    device_->get<NormOps>().add_layer_norm(b.put(residual0, x), b.put(branch0, x), dropout(rate), weight,
                                           b.put(b0, {10}), kEpsilon, sum, b.poisoned(x), statistics);
    device_->get<NormOps>().layer_norm_backward(sum, weight, statistics, b.put(ry, x), dresidual, dresidual, dw, db,
                                                Tensor{}, false);
    device_->get<ActivationOps>().dropout(dresidual, dropout(rate), dbranch);
    check_gradients({{"residual", residual0, b.take(dresidual)},
                     {"branch", branch0, b.take(dbranch)},
                     {"weight", w0, b.take(dw)},
                     {"bias", b0, b.take(db)}},
                    loss);
  }
}

/// The bias of a layer whose output is added to the residual.
TEST_F(TransformerGradientsTest, BiasOfWhatIsAddedToTheResidual) {
  const Shape x{70, 10};
  const Values residual = random_values(element_count(x), 1);
  const Values bias0 = random_values(10, 2);
  const Values weight = random_values(10, 3);
  const Values rsum = random_values(element_count(x), 5);
  const Values ry = random_values(element_count(x), 6);
  const Tensor none;
  const auto forward = [&](Bench& b, const Values& bias, const Tensor& sum, const Tensor& y, const Tensor& statistics) {
    const Tensor branch = b.poisoned(x);
    device_->get<LinearOps>().linear(b.put(Values(70, 0.0), {70, 1}), b.put(Values(10, 0.0), {10, 1}),
                                     b.put(bias, {10}), branch);
    device_->get<NormOps>().add_layer_norm(b.put(residual, x), branch, dropout(0.0f), b.put(weight, {10}),
                                           b.put(weight, {10}), kEpsilon, sum, y, statistics);
  };
  Bench b = bench();
  const Tensor sum = b.poisoned(x), statistics = b.poisoned({70, 2}), db = b.poisoned({10});
  forward(b, bias0, sum, b.poisoned(x), statistics);
  const auto backward = [&](bool accumulate) {
    device_->get<NormOps>().layer_norm_backward(sum, b.put(weight, {10}), statistics, b.put(ry, x), b.put(rsum, x),
                                                b.poisoned(x), b.put(weight, {10}), b.put(weight, {10}), db,
                                                accumulate);
    return b.take(db);
  };
  check_gradients({{"bias", bias0, backward(false)}}, [&](const std::vector<Values>& at) {
    Bench again = bench();
    const Tensor total = again.poisoned(x), y = again.poisoned(x);
    forward(again, at[0], total, y, again.poisoned({70, 2}));
    return dot(again.take(total), rsum) + dot(again.take(y), ry);
  });
  Values twice = b.take(db);
  for (double& value : twice) value *= 2.0;
  EXPECT_LE(relative_error(backward(true), twice), 1e-14);
}

TEST_F(TransformerGradientsTest, LinearGelu) {
  const Values x0 = random_values(5 * 7, 1);
  const Values first0 = random_values(6 * 7, 2);
  const Values b0 = random_values(6, 3);
  const Values second0 = random_values(4 * 6, 4);
  const Values r = random_values(5 * 4, 5);
  const auto forward = [&](Bench& b, const std::vector<Values>& at, const Tensor& pre, const Tensor& y) {
    device_->get<LinearOps>().linear_gelu(b.put(at[0], {5, 7}), b.put(at[1], {6, 7}), b.put(at[2], {6}), pre, y, true);
  };
  Bench b = bench();
  const Tensor pre = b.poisoned({5, 6});
  const Tensor y = b.poisoned({5, 6});
  const Tensor dpre = b.poisoned({5, 6});
  const Tensor dx = b.poisoned({5, 7});
  const Tensor dfirst = b.poisoned({6, 7});
  const Tensor dsecond = b.poisoned({4, 6});
  const Tensor db = b.poisoned({6});
  forward(b, {x0, first0, b0}, pre, y);
  device_->get<LinearOps>().linear_gelu_backward(b.put(second0, {4, 6}), b.put(r, {5, 4}), pre, dpre, db, false);
  device_->get<LinearOps>().linear_backward(y, b.put(second0, {4, 6}), b.put(r, {5, 4}), Tensor{}, dsecond, Tensor{},
                                            false);
  device_->get<LinearOps>().linear_backward(b.put(x0, {5, 7}), b.put(first0, {6, 7}), dpre, Tensor{}, dfirst, Tensor{},
                                            false);
  device_->get<LinearOps>().linear_backward(Tensor{}, b.put(first0, {6, 7}), dpre, dx, Tensor{}, Tensor{}, false);
  check_gradients({{"x", x0, b.take(dx)},
                   {"first weight", first0, b.take(dfirst)},
                   {"bias", b0, b.take(db)},
                   {"second weight", second0, b.take(dsecond)}},
                  [&](const std::vector<Values>& at) {
                    Bench again = bench();
                    const Tensor hidden = again.poisoned({5, 6});
                    const Tensor out = again.poisoned({5, 4});
                    forward(again, at, again.poisoned({5, 6}), hidden);
                    device_->get<LinearOps>().linear(hidden, again.put(at[3], {4, 6}), Tensor{}, out);
                    return dot(again.take(out), r);
                  });
}

/// Sequences below, at and above a block of queries, and not a multiple of a vector.
TEST_F(TransformerGradientsTest, Attention) {
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

TEST_F(TransformerGradientsTest, TokenCrossEntropy) {
  constexpr std::int64_t kVocabulary = 11, kColumns = 16;
  const Shape shape{7, kColumns};
  const Values logits0 = random_values(element_count(shape), 1, -3.0, 3.0);
  Bench b = bench();
  const TokenBatch batch = random_tokens(b, 3, 4, kVocabulary);
  const Tensor dlogits = b.put(logits0, shape);
  device_->get<LossOps>().token_cross_entropy(dlogits, batch, 2, kVocabulary, 0.5f, dlogits,
                                              b.put_object(MetricSums{}));
  check_gradients({{"logits", logits0, b.take(dlogits)}}, [&](const std::vector<Values>& at) {
    Bench forward = bench();
    MetricSums* sums = forward.put_object(MetricSums{});
    device_->get<LossOps>().token_cross_entropy(forward.put(at[0], shape), batch, 2, kVocabulary, 0.0f, Tensor{}, sums);
    return 0.5 * forward.take_object(sums).loss;
  });
}

}  // namespace
}  // namespace ddptrain::tests
