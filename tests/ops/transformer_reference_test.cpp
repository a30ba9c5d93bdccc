// Operations of transformers against the textbook's formulas and against each other. GptReferenceTest compares all of
// them with PyTorch.

#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/embedding.h"
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
