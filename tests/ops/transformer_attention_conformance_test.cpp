#include "runtime/ops/attention.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

struct AttentionCase {
  std::int64_t batch, sequence, heads, head_size;
};
/// With cuDNN in bf16 where the sequence is a multiple of 128, and without; heads of 64 fewer than the multiprocessors
/// of a GPU, and more.
std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases = {{2, 1, 3, 16},    {3, 7, 2, 5},     {2, 33, 2, 32},  {5, 80, 2, 128},
                                      {2, 64, 4, 64},   {2, 100, 3, 72},  {3, 128, 2, 64}, {1, 128, 1, 128},
                                      {2, 200, 3, 40},  {1, 256, 4, 64},  {2, 96, 1, 160}, {1, 130, 1, 256},
                                      {1, 1024, 2, 64}, {50, 128, 3, 64}, {17, 256, 8, 64}};
  std::erase_if(cases, [](const AttentionCase& c) { return c.head_size > largest_head(); });
  return cases;
}

TEST_P(TransformerConformanceTest, Attention) {
  for (const AttentionCase& c : attention_cases()) {
    const std::int64_t width = c.heads * c.head_size;
    compare(describe({c.batch, c.sequence, c.heads, c.head_size}), [&](Bench& bench) -> Outputs {
      const Shape shape{c.batch, c.sequence, 3 * width};
      const Tensor qkv = put(bench, shape, 1, 2.0);
      const Tensor out = bench.poisoned({c.batch, c.sequence, width});
      const Tensor statistics = put_statistics(bench, {c.batch, c.heads, c.sequence});
      const Tensor dqkv = bench.poisoned(shape);
      bench.device().get<AttentionOps>().attention(qkv, c.heads, out, statistics);
      bench.device().get<AttentionOps>().attention_backward(qkv, c.heads, out, statistics, put(bench, out.shape, 2),
                                                            dqkv);
      Outputs outputs = {{"out", bench.take(out)}};
      const Values gradients = bench.take(dqkv);
      for (std::int64_t part = 0; part < 3; ++part) {
        Values values;
        for (std::size_t i = 0; i < gradients.size(); ++i) {
          if (static_cast<std::int64_t>(i) / width % 3 == part) values.push_back(gradients[i]);
        }
        if (c.sequence > 1 || part == 2) outputs.emplace_back(std::string("gradient of ") + "qkv"[part], values);
      }
      return outputs;
    });
  }
}

/// A later token must not change an earlier one's result.
TEST_P(TransformerConformanceTest, AttentionIsCausal) {
  for (const AttentionCase& c : attention_cases()) {
    if (c.sequence < 2) continue;
    const std::int64_t width = c.heads * c.head_size;
    Bench bench(*tested_);
    const auto run = [&](double last) {
      Values values = random_values(c.sequence * 3 * width, 1);
      for (auto i = values.end() - 3 * width; i != values.end(); ++i) *i = last;
      const Tensor out = bench.poisoned({1, c.sequence, width});
      tested_->get<AttentionOps>().attention(bench.put(values, {1, c.sequence, 3 * width}), c.heads, out,
                                             put_statistics(bench, {1, c.heads, c.sequence}));
      Values result = bench.take(out);
      result.resize(result.size() - static_cast<std::size_t>(width));
      return result;
    };
    EXPECT_EQ(run(1.0), run(-3.0)) << c.sequence;
  }
}

}  // namespace
}  // namespace ddptrain::tests
