// The devices of TransformerConformanceTest, and its tests of several families of operations at once: they give the
// same bits from run to run, and from a captured graph, and refuse wrong shapes.

#include <functional>

#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/grouped_attention.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/rms_norm.h"
#include "tests/ops/token_batches.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

std::vector<DeviceCase> transformer_cases() {
  std::vector<DeviceCase> cases = device_cases();
  cases.push_back({"cuda_bf16_tuned", DeviceKind::cuda, Precision::bf16, 1.5e-2});
  return cases;
}

std::vector<std::uint8_t> poison(const Tensor& tensor) {
  return std::vector<std::uint8_t>(tensor.bytes(), 0xFF);  // NaN in every type
}

/// Runs `work`, which queues operations whose results are `outputs`: eagerly, again, and captured and replayed twice.
void expect_same_bits(const std::string& what, Bench& bench, const std::vector<Tensor>& outputs,
                      const std::function<void()>& work) {
  const auto results = [&](const std::function<void()>& run) {
    for (const Tensor& out : outputs) bench.device().copy_to_device(out.data, poison(out).data(), out.bytes());
    run();
    std::vector<Values> values;
    for (const Tensor& out : outputs) values.push_back(bench.take(out));
    return values;
  };
  const std::vector<Values> eager = results(work);
  for (const Values& values : eager) EXPECT_FALSE(std::isnan(norm(values))) << what;
  EXPECT_EQ(results(work), eager) << what;
  const std::unique_ptr<Graph> graph = bench.device().capture(work);
  if (!graph) return;
  for (int i = 0; i < 2; ++i) EXPECT_EQ(results([&] { graph->launch(); }), eager) << what << ", replayed";
}

TEST_P(TransformerConformanceTest, SameBitsAgainAndInGraphs) {
  constexpr std::int64_t kBatch = 4, kHeads = 2, kWidth = 128, kVocabulary = 300, kPadded = 384;
  for (const std::int64_t sequence : {24, 80, 128}) {
    Bench bench(*tested_);
    const Shape x{kBatch, sequence, kWidth};
    const std::int64_t rows = kBatch * sequence;
    const TokenBatch batch = random_tokens(bench, kBatch, static_cast<std::uint32_t>(sequence), kVocabulary);
    const Dropout dropout = make_dropout(bench, 0.1f);
    const Tensor token = put(bench, {kVocabulary, kWidth}, 1), position = put(bench, {sequence, kWidth}, 2);
    const Tensor weight = put(bench, {kWidth}, 3), bias = put(bench, {kWidth}, 4);
    const Tensor embedded = bench.poisoned(x), sum = bench.poisoned(x), normal = bench.poisoned(x);
    const Tensor statistics = put_statistics(bench, {rows, 2});
    const Tensor dweight = bench.poisoned({kWidth}), dbias = bench.poisoned({kWidth}),
                 dx_sums = bench.poisoned({kWidth});
    const Tensor dx = bench.poisoned(x), dtoken = bench.poisoned(token.shape),
                 dposition = bench.poisoned(position.shape);
    const Tensor head = bench.put_master(random_values(kPadded * kWidth, 5), {kPadded, kWidth});
    const Tensor dy = put(bench, x, 6);
    expect_same_bits("embedding and norms", bench,
                     {embedded, sum, normal, statistics, dx, dweight, dbias, dx_sums, dtoken, dposition}, [&] {
                       tested_->get<EmbeddingOps>().embed_tokens(batch, token, position, dropout, embedded);
                       tested_->get<NormOps>().add_layer_norm(embedded, dy, dropout, weight, bias, kEpsilon, sum,
                                                              normal, statistics);
                       tested_->get<NormOps>().layer_norm_backward(sum, weight, statistics, dy, Tensor{}, dx, dweight,
                                                                   dbias, dx_sums, false);
                       tested_->get<EmbeddingOps>().embed_tokens_backward(batch, dropout, dx, head, dtoken, dposition,
                                                                          false);
                     });
    const Tensor qkv = put(bench, {kBatch, sequence, 3 * kWidth}, 7);
    const Tensor out = bench.poisoned(x), dqkv = bench.poisoned(qkv.shape);
    const Tensor logarithms = put_statistics(bench, {kBatch, kHeads, sequence});
    expect_same_bits("attention", bench, {out, logarithms, dqkv}, [&] {
      tested_->get<AttentionOps>().attention(qkv, kHeads, out, logarithms);
      tested_->get<AttentionOps>().attention_backward(qkv, kHeads, out, logarithms, dy, dqkv);
    });
    const Tensor input = put(bench, {rows, kWidth}, 8), wide = put(bench, {4 * kWidth, kWidth}, 9);
    const Tensor wide_bias = put(bench, {4 * kWidth}, 10), narrow = put(bench, {kWidth, 4 * kWidth}, 11);
    const Tensor pre = bench.poisoned({rows, 4 * kWidth}), hidden = bench.poisoned({rows, 4 * kWidth});
    const Tensor dpre = bench.poisoned(pre.shape), dwide = bench.poisoned(wide.shape);
    const Tensor dwide_bias = bench.poisoned(wide_bias.shape), dpre_sums = bench.poisoned(wide_bias.shape);
    const Tensor dinput = bench.poisoned(input.shape);
    const Tensor logits = put(bench, {rows, kPadded}, 12), dlogits = bench.poisoned(logits.shape);
    MetricSums* sums = bench.put_object(MetricSums{});
    expect_same_bits("linear", bench, {pre, hidden, dpre, dpre_sums, dwide, dwide_bias, dinput, dlogits}, [&] {
      tested_->get<LinearOps>().linear_gelu(input, wide, wide_bias, pre, hidden, false);
      tested_->get<LinearOps>().linear_gelu_backward(narrow, input, pre, dpre, dpre_sums, false);
      tested_->get<LinearOps>().linear_backward(input, wide, dpre, dinput, dwide, dwide_bias, false);
      tested_->get<LossOps>().token_cross_entropy(logits, batch, 0, kVocabulary, 1.0f, dlogits, sums);
    });
  }
}

/// The operations of Llama and its relatives.
TEST_P(TransformerConformanceTest, SameBitsAgainAndInGraphsWithGroupedHeads) {
  constexpr std::int64_t kBatch = 4, kVocabulary = 300;
  constexpr GroupedHeads kHeads{4, 2, 64};
  const std::int64_t width = kHeads.width();
  for (const std::int64_t sequence : {24, 128}) {
    Bench bench(*tested_);
    const Shape x{kBatch, sequence, width}, wide{kBatch, sequence, kHeads.columns()};
    const std::int64_t rows = kBatch * sequence;
    const TokenBatch batch = random_tokens(bench, kBatch, static_cast<std::uint32_t>(sequence), kVocabulary);
    const Dropout dropout = make_dropout(bench, 0.1f);
    const Tensor token = put(bench, {kVocabulary, width}, 1), weight = put(bench, {width}, 2), dy = put(bench, x, 3);
    const Tensor embedded = bench.poisoned(x), sum = bench.poisoned(x), normal = bench.poisoned(x);
    const Tensor statistics = put_statistics(bench, {rows, 1});
    const Tensor dx = bench.poisoned(x), dweight = bench.poisoned({width}), dtoken = bench.poisoned(token.shape);
    expect_same_bits("embedding and RMS norms", bench, {embedded, sum, normal, statistics, dx, dweight, dtoken}, [&] {
      tested_->get<EmbeddingOps>().embed_tokens(batch, token, Tensor{}, dropout, embedded);
      auto& ops = tested_->get<RmsNormOps>();
      ops.add_rms_norm(embedded, dy, dropout, weight, kEpsilon, sum, normal, statistics);
      ops.rms_norm_backward(sum, weight, statistics, dy, Tensor{}, dx, dweight, Tensor{}, false);
      tested_->get<EmbeddingOps>().embed_tokens_backward(batch, dropout, dx, Tensor{}, dtoken, Tensor{}, false);
    });
    const Tensor qkv = put(bench, wide, 4), head_weight = put(bench, {kHeads.head_size}, 5);
    const Tensor frequencies =
        bench.put_master(random_values(kHeads.head_size / 2, 6, 0.0, 1.0), {kHeads.head_size / 2});
    const Tensor turned = bench.poisoned(wide), out = bench.poisoned(x), dqkv = bench.poisoned(wide);
    const Tensor head_statistics = put_statistics(bench, {rows, kHeads.heads + kHeads.key_heads});
    const Tensor logarithms = put_statistics(bench, {kBatch, kHeads.heads, sequence});
    const Tensor dquery = bench.poisoned(head_weight.shape), dkey = bench.poisoned(head_weight.shape);
    expect_same_bits("grouped attention", bench, {turned, out, logarithms, dqkv, dquery, dkey}, [&] {
      auto& ops = tested_->get<GroupedAttentionOps>();
      ops.normalise(qkv, kHeads, head_weight, head_weight, kEpsilon, turned, head_statistics);
      ops.rotate(turned, kHeads, frequencies, nullptr, GroupedAttentionOps::Turn::forward);
      ops.attention(turned, kHeads, out, logarithms);
      ops.attention_backward(turned, kHeads, out, logarithms, dy, dqkv);
      ops.rotate(dqkv, kHeads, frequencies, nullptr, GroupedAttentionOps::Turn::back);
      ops.normalise_backward(qkv, kHeads, head_weight, head_weight, head_statistics, dqkv, dquery, dkey, false);
    });
    const Tensor pre = put(bench, {rows, 2 * width}, 7), hidden = bench.poisoned({rows, width});
    const Tensor dhidden = put(bench, hidden.shape, 8), dpre = bench.poisoned(pre.shape);
    expect_same_bits("SwiGLU", bench, {hidden, dpre}, [&] {
      tested_->get<GatedOps>().swiglu(pre, hidden);
      tested_->get<GatedOps>().swiglu_backward(pre, dhidden, dpre, Tensor{});
    });
  }
}

TEST_P(TransformerConformanceTest, WrongShapesThrow) {
  Bench bench(*tested_);
  const Tensor x = put(bench, {2, 3, 8}, 1);
  const Tensor statistics = put_statistics(bench, {6, 2});
  EXPECT_THROW(tested_->get<NormOps>().layer_norm(x, put(bench, {7}, 2), put(bench, {8}, 3), kEpsilon, x, statistics),
               Error);
  EXPECT_THROW(tested_->get<AttentionOps>().attention(x, 2, bench.poisoned({2, 3, 8}), statistics), Error);
  EXPECT_THROW(tested_->get<LinearOps>().gelu(x, bench.poisoned({2, 3, 7})), Error);
  EXPECT_THROW(tested_->get<ActivationOps>().dropout(x, Dropout{}, bench.poisoned({2, 24})), Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, TransformerConformanceTest, ::testing::ValuesIn(transformer_cases()),
                         [](const auto& param) { return param.param.name; });

}  // namespace
}  // namespace ddptrain::tests
