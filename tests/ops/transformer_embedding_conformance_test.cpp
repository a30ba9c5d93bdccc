#include <algorithm>

#include "runtime/ops/embedding.h"
#include "tests/ops/token_batches.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

struct EmbedCase {
  std::int64_t batch, sequence, width, vocabulary;
};
const std::vector<EmbedCase> kEmbedCases = {{1, 1, 1, 2},    {3, 7, 5, 11},      {2, 80, 24, 96},  {5, 33, 64, 300},
                                            {4, 96, 768, 7}, {2, 200, 8, 50257}, {130, 3, 40, 17}, {3, 40, 8, 152064}};

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

/// Of a model with rotary positions and an output layer of its own.
TEST_P(TransformerConformanceTest, EmbedTokensAlone) {
  for (const EmbedCase& c : kEmbedCases) {
    for (const GradientCase gradients : kGradientCases) {
      const Shape shape{c.batch, c.sequence, c.width};
      compare(describe(shape, gradients), [&](Bench& bench) -> Outputs {
        auto& ops = bench.device().get<EmbeddingOps>();
        const TokenBatch batch = random_tokens(bench, c.batch, static_cast<std::uint32_t>(c.sequence), c.vocabulary, 1);
        const Dropout dropout = make_dropout(bench, 0.25f);
        const Tensor out = bench.poisoned(shape);
        const Tensor dtoken = gradient(bench, gradients, {c.vocabulary, c.width});
        ops.embed_tokens(batch, put(bench, {c.vocabulary, c.width}, 1), Tensor{}, dropout, out);
        ops.embed_tokens_backward(batch, dropout, put(bench, shape, 3), Tensor{}, dtoken, Tensor{},
                                  gradients.accumulate);
        return {{"out", bench.take(out)}, {"dtoken", bench.take(dtoken)}};
      });
    }
  }
}

/// The parts of a vocabulary: their outputs add up to the whole one's, and so do the gradients of their tokens.
TEST_P(TransformerConformanceTest, EmbeddingsOfPartsAddUp) {
  constexpr std::int64_t kVocabulary = 100, kRows = 48;
  const Shape shape{5, 33, 64};
  const auto run = [&](Bench& bench, std::int64_t rows) -> Outputs {
    auto& ops = bench.device().get<EmbeddingOps>();
    TokenBatch batch = random_tokens(bench, 5, 33, kVocabulary);
    const Dropout dropout = make_dropout(bench, 0.25f);
    const Values embedding = random_values(kVocabulary * 64, 1), head_values = random_values(kVocabulary * 64, 4);
    Values sum(static_cast<std::size_t>(element_count(shape))), dtokens, dpositions;
    for (std::int64_t first = 0; first < kVocabulary; first += rows) {
      batch.vocabulary_slice = {static_cast<std::uint32_t>(first), kVocabulary};
      const std::int64_t count = std::min(rows, kVocabulary - first);
      const auto mine = [&](const Values& values) {
        return Values(values.begin() + first * 64, values.begin() + (first + count) * 64);
      };
      const Tensor out = bench.poisoned(shape);
      ops.embed_tokens(batch, bench.put(mine(embedding), {count, 64}), put(bench, {35, 64}, 2), dropout, out);
      const Values values = bench.take(out);
      for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += values[i];
      const Tensor dtoken = bench.poisoned({count, 64}), dposition = bench.poisoned({33, 64});
      const Tensor head = bench.put_master(bench.rounded(mine(head_values)), {count, 64});
      ops.embed_tokens_backward(batch, dropout, put(bench, shape, 3), head, dtoken, dposition, false);
      const Values of_part = bench.take(dtoken);
      dtokens.insert(dtokens.end(), of_part.begin(), of_part.end());
      dpositions = bench.take(dposition);
    }
    return {{"out", sum}, {"dtoken", dtokens}, {"dposition", dpositions}};
  };
  compare("parts", [&](Bench& bench) { return run(bench, &bench.device() == oracle_.get() ? kVocabulary : kRows); });
}

/// All places hold the same token: one run over many chunks.
TEST_P(TransformerConformanceTest, EmbedTokensBackwardOfOneHotToken) {
  for (const std::uint32_t token : {0, 3, 8}) {
    compare(fmt::format("token {}", token), [&](Bench& bench) -> Outputs {
      const Tensor dtoken = bench.poisoned({9, 72});
      const Tensor dposition = bench.poisoned({50, 72});
      std::vector<std::uint32_t> text(50 * 40 + 1, token);
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
