// Operations of transformers against examples worked out by hand and against the textbook's formulas.

#include <algorithm>

#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

class TransformerReferenceTest : public DeviceTest {
 protected:
  Dropout no_dropout() { return {0.0f, 0, 0, 0, {bench_->put_object(StepState{}), 0}}; }
  Tensor statistics(const Shape& shape) {
    return bench_->put_master(Values(static_cast<std::size_t>(element_count(shape)), std::nan("")), shape);
  }
};

TEST_P(TransformerReferenceTest, EmbeddingAddsTokenAndPosition) {
  const TokenBatch batch = put_tokens(*bench_, {2, 0, 1, 1, 2}, 2, 2);
  const Tensor out = bench_->poisoned({2, 2, 8});
  Values token(3 * 8);
  Values position(3 * 8);
  for (std::size_t i = 0; i < 24; ++i) {
    token[i] = static_cast<double>(i / 8) + static_cast<double>(i % 8) / 8;
    position[i] = 8.0 * static_cast<double>(i / 8);
  }
  device_->get<EmbeddingOps>().embed_tokens(batch, bench_->put(token, {3, 8}), bench_->put(position, {3, 8}),
                                            no_dropout(), out);
  Values expected;
  for (const double first : {2.0, 8.0, 1.0, 9.0}) {
    for (std::size_t i = 0; i < 8; ++i) expected.push_back(first + static_cast<double>(i) / 8);
  }
  EXPECT_EQ(bench_->take(out), expected);
}

TEST_P(TransformerReferenceTest, EmbeddingGradientsAreSumsOverPlacesAndBatch) {
  const TokenBatch batch = put_tokens(*bench_, {2, 0, 2, 2, 1}, 2, 2);  // inputs 2 0 | 2 2
  Values dout;
  for (const double value : {1.0, 2.0, 4.0, 8.0}) dout.insert(dout.end(), 8, value);
  Values head(4 * 8);
  for (std::size_t i = 0; i < head.size(); ++i) head[i] = 100.0 * static_cast<double>(i / 8);
  const Tensor dtoken = bench_->put(Values(3 * 8, 1.0), {3, 8});
  const Tensor dposition = bench_->put(Values(2 * 8, 1.0), {2, 8});
  const auto run = [&](bool accumulate) {
    device_->get<EmbeddingOps>().embed_tokens_backward(batch, no_dropout(), bench_->put(dout, {2, 2, 8}),
                                                       bench_->put_master(head, {4, 8}), dtoken, dposition, accumulate);
  };
  const auto rows = [](const Values& firsts) {
    Values values;
    for (const double first : firsts) values.insert(values.end(), 8, first);
    return values;
  };
  run(true);
  expect_close(dtoken, rows({3, 101, 214}));
  expect_close(dposition, rows({6, 11}));
  run(false);
  expect_close(dtoken, rows({2, 100, 213}));
  expect_close(dposition, rows({5, 10}));
}

TEST_P(TransformerReferenceTest, LayerNormHasTheWantedMeanAndVariance) {
  const Tensor y = bench_->poisoned({2, 8});
  const Tensor found = statistics({2, 2});
  device_->get<NormOps>().layer_norm(bench_->put({1, 3, 1, 3, 1, 3, 1, 3, -4, 4, 4, -4, -4, 4, 4, -4}, {2, 8}),
                                     bench_->put({2, 2, 2, 2, 1, 1, 1, 1}, {8}),
                                     bench_->put({0, 0, 0, 0, 0, 0, 0.5, 0.5}, {8}), 0.0f, y, found);
  expect_close(y, {-2, 2, -2, 2, -1, 1, -0.5, 1.5, -2, 2, 2, -2, -1, 1, 1.5, -0.5});
  expect_close(found, {2, 1, 0, 0.25});
}

/// A recomputed norm of the stored sum must be the same bits.
TEST_P(TransformerReferenceTest, AddLayerNormIsTheNormOfItsSum) {
  const Shape shape{3, 5, 24};
  const Tensor residual = bench_->put(random_values(element_count(shape), 1), shape);
  const Tensor branch = bench_->put(random_values(element_count(shape), 2), shape);
  const Tensor weight = bench_->put(random_values(24, 3), {24});
  const Tensor bias = bench_->put(random_values(24, 4), {24});
  for (const float rate : {0.0f, 0.25f}) {
    Dropout dropout = no_dropout();
    dropout.rate = rate;
    const Tensor sum = bench_->poisoned(shape);
    const Tensor y = bench_->poisoned(shape);
    const Tensor again = bench_->poisoned(shape);
    const Tensor found = statistics({15, 2});
    const Tensor found_again = statistics({15, 2});
    device_->get<NormOps>().add_layer_norm(residual, branch, dropout, weight, bias, 1e-5f, sum, y, found);
    device_->get<NormOps>().layer_norm(sum, weight, bias, 1e-5f, again, found_again);
    EXPECT_EQ(bench_->take(y), bench_->take(again));
    EXPECT_EQ(bench_->take(found), bench_->take(found_again));
    const Tensor dropped = bench_->poisoned(shape);
    device_->get<ActivationOps>().dropout(branch, dropout, dropped);
    Values expected = bench_->take(residual);
    const Values added = bench_->take(dropped);
    for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i];
    expect_close(sum, expected);
  }
}

TEST_P(TransformerReferenceTest, DropoutMasksAreThoseOfKeeps) {
  const StepState state{(1ull << 33) + 5};
  const Tensor y = bench_->poisoned({4, 3, 72});
  Dropout dropout{0.25f, 77, 5, 11, {bench_->put_object(state), 2}};
  device_->get<ActivationOps>().dropout(bench_->put(Values(4 * 3 * 72, 1.0), {4, 3, 72}), dropout, y);
  dropout.step.state = &state;
  const Values values = bench_->take(y);
  for (std::uint32_t row = 0; row < 4; ++row) {
    for (std::uint32_t feature = 0; feature < 3 * 72; ++feature) {
      ASSERT_EQ(values[row * 216 + feature] != 0.0, dropout.keeps(feature, row)) << row << " " << feature;
    }
  }
}

TEST_P(TransformerReferenceTest, GeluIsTheTanhForm) {
  Values x;
  for (int i = -80; i < 80; ++i) x.push_back(i / 8.0);
  Values expected;
  for (const double v : x) {
    expected.push_back(0.5 * v * (1.0 + std::tanh(std::sqrt(2.0 / std::acos(-1.0)) * (v + 0.044715 * v * v * v))));
  }
  const Tensor y = bench_->poisoned({20, 8});
  device_->get<LinearOps>().gelu(bench_->put(x, {20, 8}), y);
  expect_close(y, expected);
  const Values values = bench_->take(y);
  EXPECT_EQ(values.at(80), 0.0);
  EXPECT_NEAR(values.front(), 0.0, 1e-12);
  EXPECT_EQ(values.back(), 79 / 8.0);
}

TEST_P(TransformerReferenceTest, LinearGeluIsLinearAndGelu) {
  const Tensor pre = bench_->poisoned({24, 40});
  const Tensor y = bench_->poisoned({24, 40});
  const Tensor again = bench_->poisoned({24, 40});
  const Tensor plain = bench_->poisoned({24, 40});
  const Tensor x = bench_->put(random_values(24 * 16, 1), {24, 16});
  const Tensor weight = bench_->put(random_values(40 * 16, 2), {40, 16});
  const Tensor bias = bench_->put(random_values(40, 3), {40});
  device_->get<LinearOps>().linear_gelu(x, weight, bias, pre, y, true);
  device_->get<LinearOps>().gelu(pre, again);
  device_->get<LinearOps>().linear(x, weight, bias, plain);
  EXPECT_EQ(bench_->take(y), bench_->take(again));
  expect_close(pre, bench_->take(plain));
}

/// softmax(q k^T / sqrt(head size)) v, place by place.
Values plain_attention(const Values& qkv, std::size_t batch, std::size_t sequence, std::size_t heads,
                       std::size_t size) {
  const std::size_t width = heads * size;
  Values out(batch * sequence * width, 0.0);
  for (std::size_t window = 0; window < batch; ++window) {
    for (std::size_t head = 0; head < heads; ++head) {
      const auto at = [&](std::size_t position, std::size_t part, std::size_t i) {
        return qkv[(window * sequence + position) * 3 * width + part * width + head * size + i];
      };
      for (std::size_t query = 0; query < sequence; ++query) {
        Values weights;
        double total = 0.0;
        for (std::size_t key = 0; key <= query; ++key) {
          double score = 0.0;
          for (std::size_t i = 0; i < size; ++i) score += at(query, 0, i) * at(key, 1, i);
          weights.push_back(std::exp(score / std::sqrt(static_cast<double>(size))));
          total += weights.back();
        }
        for (std::size_t key = 0; key <= query; ++key) {
          for (std::size_t i = 0; i < size; ++i) {
            out[(window * sequence + query) * width + head * size + i] += weights[key] / total * at(key, 2, i);
          }
        }
      }
    }
  }
  return out;
}

TEST_P(TransformerReferenceTest, AttentionIsThatOfTheTextbook) {
  for (const std::int64_t sequence : {8, 64, 72, 136}) {
    const Shape shape{3, sequence, 3 * 32};
    const Tensor qkv = bench_->put(random_values(element_count(shape), 1, -2.0, 2.0), shape);
    const Tensor out = bench_->poisoned({3, sequence, 32});
    device_->get<AttentionOps>().attention(qkv, 2, out, statistics({3, 2, sequence}));
    expect_close(out, plain_attention(bench_->take(qkv), 3, static_cast<std::size_t>(sequence), 2, 16));
  }
}

TEST_P(TransformerReferenceTest, CrossEntropyCountsLossAndHitsWithoutThePadding) {
  const TokenBatch batch = put_tokens(*bench_, {0, 1, 0, 1, 0, 1, 1}, 2, 3);  // targets 1 0 1 | 0 1 1
  const Tensor dlogits = bench_->poisoned({2, 8});
  Values logits(16, 1000.0);
  logits[0] = 0, logits[1] = 2, logits[8] = 0, logits[9] = 2;
  MetricSums* sums = bench_->put_object(MetricSums{1.0, 10, 100});
  device_->get<LossOps>().token_cross_entropy(bench_->put(logits, {2, 8}), batch, 2, 2, 2.0f, dlogits,
                                              sums);  // targets 1 | 0
  const double small = 1.0 / (1.0 + std::exp(2.0));   // softmax of the smaller logit
  Values expected(16, 0.0);
  expected[0] = 2 * small, expected[1] = -2 * small, expected[8] = 2 * small - 2, expected[9] = 2 - 2 * small;
  expect_close(dlogits, expected);
  const MetricSums result = bench_->take_object(sums);
  EXPECT_NEAR(result.loss, 1.0 - std::log(1 - small) - std::log(small), 1e-5);
  EXPECT_EQ(result.correct, 11u);
  EXPECT_EQ(result.samples, 102u);
}

/// In place, without a gradient, and in pieces the sums are the same.
TEST_P(TransformerReferenceTest, CrossEntropyInPieces) {
  const std::int64_t vocabulary = 300;
  const Shape shape{2 * 24, 384};
  const TokenBatch batch = random_tokens(*bench_, 2, 24, vocabulary, 1);
  const Values logits = random_values(element_count(shape), 1, -4.0, 4.0);
  const auto sums = [&](const std::vector<std::int64_t>& bounds, bool gradient) {
    MetricSums* result = bench_->put_object(MetricSums{});
    for (std::size_t i = 0; i + 1 < bounds.size(); ++i) {
      const Values piece(logits.begin() + bounds[i] * shape[1], logits.begin() + bounds[i + 1] * shape[1]);
      const Tensor values = bench_->put(piece, {bounds[i + 1] - bounds[i], shape[1]});
      device_->get<LossOps>().token_cross_entropy(values, batch, bounds[i], vocabulary, 1.0f,
                                                  gradient ? values : Tensor{}, result);
    }
    return bench_->take_object(result);
  };
  const MetricSums whole = sums({0, 48}, false);
  EXPECT_EQ(whole.samples, 48u);
  for (const bool gradient : {false, true}) {
    const MetricSums pieces = sums({0, 7, 31, 48}, gradient);
    EXPECT_NEAR(pieces.loss, whole.loss, 1e-5 * whole.loss);
    EXPECT_EQ(pieces.correct, whole.correct);
    EXPECT_EQ(pieces.samples, 48u);
  }
}

TEST_P(TransformerReferenceTest, RefusesTokensOutsideOfTheVocabulary) {
  if (GetParam().kind != DeviceKind::cpu) GTEST_SKIP() << "kernels do not report";
  const TokenBatch batch = put_tokens(*bench_, {0, 1, 5, 1}, 1, 3);
  EXPECT_THROW(device_->get<EmbeddingOps>().embed_tokens(batch, bench_->poisoned({5, 8}), bench_->poisoned({3, 8}),
                                                         no_dropout(), bench_->poisoned({1, 3, 8})),
               Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, TransformerReferenceTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
