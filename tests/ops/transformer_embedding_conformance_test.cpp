#include "runtime/ops/embedding.h"
#include "tests/ops/token_batches.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

struct EmbedCase {
  std::int64_t batch, sequence, width, vocabulary;
};
const std::vector<EmbedCase> kEmbedCases = {{1, 1, 1, 2},    {3, 7, 5, 11},      {2, 80, 24, 96}, {5, 33, 64, 300},
                                            {4, 96, 768, 7}, {2, 200, 8, 50257}, {130, 3, 40, 17}};

TEST_P(TransformerConformanceTest, EmbedTokens) {
  for (const EmbedCase& c : kEmbedCases) {
    for (const float rate : {0.0f, 0.25f}) {
      const Shape shape{c.batch, c.sequence, c.width};
      compare(describe(shape, rate > 0 ? "with dropout" : ""), [&](Bench& bench) -> Outputs {
        const Tensor out = bench.poisoned(shape);
        bench.device().get<EmbeddingOps>().embed_tokens(
            random_tokens(bench, c.batch, static_cast<std::uint32_t>(c.sequence), c.vocabulary, 1),
            put(bench, {c.vocabulary, c.width}, 1), put(bench, {c.sequence + 2, c.width}, 2), make_dropout(bench, rate),
            out);
        return {{"out", bench.take(out)}};
      });
    }
  }
}

/// Two segments of bytes: windows are found across both.
TEST_P(TransformerConformanceTest, EmbedTokensOfTwoSegments) {
  compare("bytes", [&](Bench& bench) -> Outputs {
    TokenBatch batch = random_tokens(bench, 6, 9, 200);
    std::vector<std::uint8_t> text(9 * 20 + 1);
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<std::uint8_t>(7 * i % 199);
    const Tensor memory = bench.put_bytes(text, {static_cast<std::int64_t>(text.size())});
    struct Segments {
      TokenSegmentView view[2];
    };
    const auto* segments = bench.put_object(Segments{{{memory.data, 0}, {memory.as<std::uint8_t>() + 50, 5}}});
    batch.source = {segments->view, 2, 17, 9, 1};
    batch.order.dataset_size = 17;
    const Tensor out = bench.poisoned({6, 9, 16});
    bench.device().get<EmbeddingOps>().embed_tokens(batch, put(bench, {200, 16}, 1), put(bench, {9, 16}, 2),
                                                    make_dropout(bench, 0.0f), out);
    return {{"out", bench.take(out)}};
  });
}

TEST_P(TransformerConformanceTest, EmbedTokensBackward) {
  for (const EmbedCase& c : kEmbedCases) {
    for (const GradientCase gradients : kGradientCases) {
      for (const float rate : {0.0f, 0.25f}) {
        const Shape shape{c.batch, c.sequence, c.width};
        compare(describe(shape, gradients), [&](Bench& bench) -> Outputs {
          const Tensor dtoken = gradient(bench, gradients, {c.vocabulary, c.width});
          const Tensor dposition = gradient(bench, gradients, {c.sequence, c.width});
          const std::int64_t padded = c.vocabulary + 3;
          const Tensor head = bench.put_master(bench.rounded(random_values(padded * c.width, 4)), {padded, c.width});
          bench.device().get<EmbeddingOps>().embed_tokens_backward(
              random_tokens(bench, c.batch, static_cast<std::uint32_t>(c.sequence), c.vocabulary),
              make_dropout(bench, rate), put(bench, shape, 3), head, dtoken, dposition, gradients.accumulate);
          return {{"dtoken", bench.take(dtoken)}, {"dposition", bench.take(dposition)}};
        });
      }
    }
  }
}

/// All places hold the same token: one run over many chunks.
TEST_P(TransformerConformanceTest, EmbedTokensBackwardOfOneHotToken) {
  for (const std::uint16_t token : {0, 3, 8}) {
    compare(fmt::format("token {}", token), [&](Bench& bench) -> Outputs {
      const Tensor dtoken = bench.poisoned({9, 72});
      const Tensor dposition = bench.poisoned({50, 72});
      std::vector<std::uint16_t> text(50 * 40 + 1, token);
      text[70] = 5;
      bench.device().get<EmbeddingOps>().embed_tokens_backward(
          put_tokens(bench, text, 37, 50), make_dropout(bench, 0.1f), put(bench, {37, 50, 72}, 3),
          bench.put_master(Values(9 * 72, 0.25), {9, 72}), dtoken, dposition, false);
      return {{"dtoken", bench.take(dtoken)}, {"dposition", bench.take(dposition)}};
    });
  }
}

}  // namespace
}  // namespace ddptrain::tests
