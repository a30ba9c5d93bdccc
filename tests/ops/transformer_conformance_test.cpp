// Every operation of transformers, on every device, against the CPU in double precision, which sees the same (rounded)
// inputs; the same bits from run to run, and from a captured graph.

#include <cstdlib>
#include <functional>
#include <utility>

#include "runtime/device/tuned_choices.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "tests/ops/conformance.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::testing {
namespace {

constexpr float kEpsilon = 1e-5f;

/// In which type the gradients of parameters are kept, and whether there are some to add to.
struct GradientCase {
  bool accumulate, master;
};
constexpr GradientCase kGradientCases[] = {{false, false}, {true, false}, {false, true}, {true, true}};

std::string describe(const Shape& shape, const std::string& note = "") {
  return fmt::format("[{}] {}", fmt::join(shape, ", "), note);
}
std::string describe(const Shape& shape, GradientCase gradient) {
  return describe(shape, fmt::format("accumulate {} master {}", gradient.accumulate, gradient.master));
}

std::vector<DeviceCase> transformer_cases() {
  std::vector<DeviceCase> cases = device_cases();
  cases.push_back({"cuda_bf16_tuned", DeviceKind::cuda, Precision::bf16, 1.5e-2});
  return cases;
}

struct LinearCase {
  std::int64_t rows, in, out;
};

class TransformerConformanceTest : public AgainstOracle {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    make_tested();
    oracle_ = make_cpu_device({.precision = Precision::fp64, .threads = 2});
  }

  void make_tested() {
    DeviceOptions options;
    options.precision = GetParam().precision;
    options.tune = GetParam().name.ends_with("tuned");
    options.threads = 2;
    tested_ = GetParam().kind == DeviceKind::cpu ? make_cpu_device(options) : make_cuda_device(options, 0);
  }

  void check_linear_gelu(const LinearCase& c, bool again);
  void check_linear_gelu_backward(const LinearCase& c);

  /// Runs `work`, which queues operations whose results are `outputs`: eagerly, again, and captured and replayed twice.
  void expect_same_bits(const std::string& what, Bench& bench, const std::vector<Tensor>& outputs,
                        const std::function<void()>& work) {
    const auto results = [&](const std::function<void()>& run) {
      for (const Tensor& out : outputs) tested_->copy_to_device(out.data, poison(out).data(), out.bytes());
      run();
      std::vector<Values> values;
      for (const Tensor& out : outputs) values.push_back(bench.take(out));
      return values;
    };
    const std::vector<Values> eager = results(work);
    for (const Values& values : eager) EXPECT_FALSE(std::isnan(norm(values))) << what;
    EXPECT_EQ(results(work), eager) << what;
    const std::unique_ptr<Graph> graph = tested_->capture(work);
    if (!graph) return;
    for (int i = 0; i < 2; ++i) EXPECT_EQ(results([&] { graph->launch(); }), eager) << what << ", replayed";
  }

 private:
  static std::vector<std::uint8_t> poison(const Tensor& tensor) {
    return std::vector<std::uint8_t>(tensor.bytes(), 0xFF);  // NaN in every type
  }
};

Tensor gradient(Bench& bench, GradientCase c, const Shape& shape) {
  const std::int64_t count = element_count(shape);
  const Values values =
      c.accumulate ? bench.rounded(random_values(count, 99)) : Values(static_cast<std::size_t>(count), std::nan(""));
  return c.master ? bench.put_master(values, shape) : bench.put(values, shape);
}

Tensor put(Bench& bench, const Shape& shape, std::uint32_t seed, double limit = 1.0) {
  return bench.put(random_values(element_count(shape), seed, -limit, limit), shape);
}

Tensor put_statistics(Bench& bench, const Shape& shape) {
  return bench.put_master(Values(static_cast<std::size_t>(element_count(shape)), std::nan("")), shape);
}

Dropout make_dropout(Bench& bench, float rate) {
  return {rate, 1234567890123ull, 2, 40, {bench.put_object(StepState{(1ull << 33) + 5}), 2}};
}

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

/// Widths with and without whole packs, one for each number of packs of a lane, and wider than a warp's registers.
const std::vector<std::int64_t> kWidths = {1, 7, 24, 64, 200, 256, 512, 768, 1000, 1280, 1600, 2048, 2056, 4100};

TEST_P(TransformerConformanceTest, LayerNorm) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t rows : {1, 9, 67}) {
      compare(describe({rows, width}), [&](Bench& bench) -> Outputs {
        const Tensor y = bench.poisoned({rows, width});
        const Tensor statistics = put_statistics(bench, {rows, 2});
        bench.device().get<NormOps>().layer_norm(bench.put(random_values(rows * width, 1, -1.0, 3.0), {rows, width}),
                                                 put(bench, {width}, 2), put(bench, {width}, 3), kEpsilon, y,
                                                 statistics);
        return {{"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
      });
    }
  }
}

TEST_P(TransformerConformanceTest, AddLayerNorm) {
  for (const std::int64_t width : kWidths) {
    for (const float rate : {0.0f, 0.25f}) {
      const Shape shape{3, 5, width};
      compare(describe(shape, rate > 0 ? "with dropout" : ""), [&](Bench& bench) -> Outputs {
        const Tensor sum = bench.poisoned(shape);
        const Tensor y = bench.poisoned(shape);
        const Tensor statistics = put_statistics(bench, {15, 2});
        bench.device().get<NormOps>().add_layer_norm(put(bench, shape, 1, 2.0), put(bench, shape, 2),
                                                     make_dropout(bench, rate), put(bench, {width}, 3),
                                                     put(bench, {width}, 4), kEpsilon, sum, y, statistics);
        return {{"sum", bench.take(sum)}, {"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
      });
    }
  }
}

enum class Alias { none, dy, dresidual, no_residual };

/// Of one column alone, dx is no more than the rounding of dresidual, 0 without one: there is nothing to be relative
/// to.
Tensor put_residual(Bench& bench, Alias alias, const Shape& shape) {
  const bool has_none = alias == Alias::no_residual && shape.back() > 1;
  return has_none ? Tensor{} : put(bench, shape, 5);
}

TEST_P(TransformerConformanceTest, LayerNormBackward) {
  for (const std::int64_t width : kWidths) {
    for (const GradientCase gradients : kGradientCases) {
      for (const Alias alias : {Alias::none, Alias::dy, Alias::dresidual, Alias::no_residual}) {
        const std::int64_t rows = width == 64 ? 5000 : 67;  // warps that take several rows, and one
        compare(describe({rows, width}, gradients), [&](Bench& bench) -> Outputs {
          const Shape shape{rows, width};
          const Tensor x = put(bench, shape, 1);
          const Tensor weight = put(bench, {width}, 2);
          const Tensor statistics = put_statistics(bench, {rows, 2});
          bench.device().get<NormOps>().layer_norm(x, weight, put(bench, {width}, 3), kEpsilon, bench.poisoned(shape),
                                                   statistics);
          const Tensor dy = put(bench, shape, 4);
          const Tensor dresidual = put_residual(bench, alias, shape);
          const Tensor dx = alias == Alias::dy ? dy : alias == Alias::dresidual ? dresidual : bench.poisoned(shape);
          const Tensor dweight = gradient(bench, gradients, {width});
          const Tensor dbias = gradient(bench, gradients, {width});
          const Tensor dx_sums = alias == Alias::dy ? Tensor{} : gradient(bench, gradients, {width});
          bench.device().get<NormOps>().layer_norm_backward(x, weight, statistics, dy, dresidual, dx, dweight, dbias,
                                                            dx_sums, gradients.accumulate);
          Outputs outputs = {{"dx", bench.take(dx)}, {"dweight", bench.take(dweight)}, {"dbias", bench.take(dbias)}};
          if (dx_sums) outputs.emplace_back("sums of dx", bench.take(dx_sums));
          return outputs;
        });
      }
    }
  }
}

TEST_P(TransformerConformanceTest, Dropout) {
  for (const Shape& shape : std::vector<Shape>{{1, 1}, {3, 7, 5}, {5, 9, 32}, {2, 80, 256}, {2, 3, 8}}) {
    for (const float rate : {0.0f, 0.1f, 0.9f}) {
      compare(describe(shape), [&](Bench& bench) -> Outputs {
        const Tensor x = put(bench, shape, 1);
        const Tensor y = bench.poisoned(shape);
        bench.device().get<ActivationOps>().dropout(x, make_dropout(bench, rate), y);
        bench.device().get<ActivationOps>().dropout(x, make_dropout(bench, rate), x);
        return {{"y", bench.take(y)}, {"in place", bench.take(x)}};
      });
    }
  }
}

const std::vector<LinearCase> kLinearCases = {{1, 1, 1}, {7, 12, 5}, {96, 64, 256}, {200, 96, 384}, {1000, 768, 64}};

/// `again`: whether gelu() must give the same bits.
void TransformerConformanceTest::check_linear_gelu(const LinearCase& c, bool again) {
  compare(describe({c.rows, c.in, c.out}), [&](Bench& bench) -> Outputs {
    auto& linear = bench.device().get<LinearOps>();
    const Tensor pre = bench.poisoned({c.rows, c.out});
    const Tensor y = bench.poisoned({c.rows, c.out});
    const Tensor recomputed = bench.poisoned({c.rows, c.out});
    linear.linear_gelu(put(bench, {c.rows, c.in}, 1), put(bench, {c.out, c.in}, 2, 0.2), put(bench, {c.out}, 3), pre, y,
                       again);
    linear.gelu(pre, recomputed);
    if (again) {
      EXPECT_EQ(bench.take(recomputed), bench.take(y));
    }
    return {{"pre", bench.take(pre)}, {"y", bench.take(y)}};
  });
}

TEST_P(TransformerConformanceTest, LinearGelu) {
  for (const LinearCase& c : kLinearCases) {
    for (const bool again : {true, false}) check_linear_gelu(c, again);
  }
}

void TransformerConformanceTest::check_linear_gelu_backward(const LinearCase& c) {
  for (const GradientCase gradients : kGradientCases) {
    compare(describe({c.rows, c.in, c.out}, gradients), [&](Bench& bench) -> Outputs {
      const Tensor weight = put(bench, {c.out, c.in}, 1), dy = put(bench, {c.rows, c.out}, 2);
      const Tensor pre = put(bench, {c.rows, c.in}, 3, 3.0);
      const Tensor dpre = bench.poisoned(pre.shape), dpre_alone = bench.poisoned(pre.shape);
      const Tensor dbias = gradient(bench, gradients, {c.in});
      bench.device().get<LinearOps>().linear_gelu_backward(weight, dy, pre, dpre, dbias, gradients.accumulate);
      bench.device().get<LinearOps>().linear_gelu_backward(weight, dy, pre, dpre_alone, Tensor{}, gradients.accumulate);
      return {{"dpre", bench.take(dpre)}, {"dbias", bench.take(dbias)}, {"dpre alone", bench.take(dpre_alone)}};
    });
  }
}

TEST_P(TransformerConformanceTest, LinearGeluBackward) {
  for (const LinearCase& c : kLinearCases) check_linear_gelu_backward(c);
}

/// Of linear_gelu, and of linear_gelu_backward without and with the bias gradient, in the order of Tuner's names.
const std::vector<std::string> kGeluWays = {"separate", "gelu in the epilogue"};
const std::vector<std::string> kGradientWays = {"separate", "gelu in the epilogue", "gelu and sums in the epilogue"};

/// As Tuner names work.
std::string work_of(const std::string& operation, const std::vector<std::string>& ways, const std::string& product) {
  return fmt::format("{} ({}): bf16 {} bf16 bf16 bf16", operation, fmt::join(ways, ", "), product);
}

/// Rows of whole packs of 16 bytes, which epilogues want.
const std::vector<LinearCase> kAlignedCases = {
    {1, 8, 8}, {40, 64, 256}, {129, 72, 264}, {300, 512, 136}, {257, 1024, 768}};

/// Every way that --tune on can choose, as if a cache had it. A way that a product cannot be computed in runs as the
/// first one.
TEST_P(TransformerConformanceTest, LinearGeluInAllWays) {
  if (!GetParam().name.ends_with("tuned")) GTEST_SKIP() << "without --tune on there is one way";
  for (const std::string& way : kGradientWays) {
    SCOPED_TRACE(way);
    make_tested();
    TunedChoices::Map choices;
    for (const LinearCase& c : kAlignedCases) {
      const std::string backward = fmt::format("{} x {} x {} nn", c.rows, c.in, c.out);
      choices[work_of("linear and gelu", kGeluWays, fmt::format("{} x {} x {} nt", c.rows, c.out, c.in))] = way;
      choices[work_of("gelu gradient", kGeluWays, backward)] = way;
      choices[work_of("gelu gradient and sums", kGradientWays, backward)] = way;
    }
    auto& tuned = tested_->get<TunedChoices>();
    tuned.restore(choices);
    for (const LinearCase& c : kAlignedCases) {
      check_linear_gelu(c, false);
      check_linear_gelu_backward(c);
    }
    for (const auto& [work, choice] : tuned.take_new()) {
      EXPECT_EQ(work.rfind("product", 0), 0u) << work << " was timed";
    }
  }
}

TEST_P(TransformerConformanceTest, LinearBackward) {
  for (const LinearCase& c : kLinearCases) {
    for (const GradientCase gradients : kGradientCases) {
      compare(describe({c.rows, c.in, c.out}, gradients), [&](Bench& bench) -> Outputs {
        Device& device = bench.device();
        const Tensor x = put(bench, {c.rows, c.in}, 1);
        const Tensor weight = put(bench, {c.out, c.in}, 2);
        const Tensor dy = put(bench, {c.rows, c.out}, 3);
        const Tensor dx = bench.poisoned({c.rows, c.in});
        const Tensor dx_alone = bench.poisoned({c.rows, c.in});
        const Tensor dweight = gradient(bench, gradients, {c.out, c.in});
        const Tensor dweight_alone = gradient(bench, gradients, {c.out, c.in});
        const Tensor dbias = gradient(bench, gradients, {c.out});
        const Tensor dbias_alone = gradient(bench, gradients, {c.out});
        device.get<LinearOps>().linear_backward(x, weight, dy, dx, dweight, dbias, gradients.accumulate);
        device.get<LinearOps>().linear_backward(Tensor{}, weight, dy, dx_alone, Tensor{}, Tensor{},
                                                gradients.accumulate);
        device.get<LinearOps>().linear_backward(x, weight, dy, Tensor{}, dweight_alone, Tensor{}, gradients.accumulate);
        device.get<LinearOps>().linear_backward(Tensor{}, weight, dy, Tensor{}, Tensor{}, dbias_alone,
                                                gradients.accumulate);
        return {{"dx", bench.take(dx)},
                {"dweight", bench.take(dweight)},
                {"dbias", bench.take(dbias)},
                {"dx alone", bench.take(dx_alone)},
                {"dweight alone", bench.take(dweight_alone)},
                {"dbias alone", bench.take(dbias_alone)}};
      });
    }
  }
}

struct AttentionCase {
  std::int64_t batch, sequence, heads, head_size;
};
/// With cuDNN in bf16 where the sequence is a multiple of 128, and without. Large heads do not fit the memory of a
/// small GPU (docs/reference/platforms.md), also where one is emulated.
std::vector<AttentionCase> attention_cases() {
  std::vector<AttentionCase> cases = {{2, 1, 3, 16},   {3, 7, 2, 5},    {2, 33, 2, 32},   {5, 80, 2, 128},
                                      {2, 64, 4, 64},  {3, 128, 2, 64}, {1, 128, 1, 128}, {2, 200, 3, 40},
                                      {1, 256, 4, 64}, {2, 96, 1, 160}, {1, 130, 1, 256}, {1, 1024, 2, 64}};
  const char* limit = std::getenv("DDPTRAIN_SHARED_MEMORY_LIMIT");
  const int kib = limit == nullptr ? 163 : std::atoi(limit);
  std::erase_if(cases, [&](const AttentionCase& c) { return c.head_size > (kib < 66 ? 64 : kib < 130 ? 128 : 256); });
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

struct LossCase {
  std::int64_t rows, columns, vocabulary, first;
};
const std::vector<LossCase> kLossCases = {{1, 2, 2, 0},
                                          {5, 7, 6, 3},
                                          {33, 96, 96, 0},
                                          {40, 128, 100, 5},
                                          {9, 20096, 20000, 1},
                                          {3, 50304, 50257, 2},
                                          {2, 60000, 60000, 0},
                                          // Around the sizes at which a kernel keeps another number of exponentials
                                          // or none, and columns that no pack of 16 bytes divides.
                                          {2, 16384, 16381, 0},
                                          {2, 16392, 16385, 1},
                                          {2, 20480, 20480, 0},
                                          {2, 20488, 20481, 0},
                                          {2, 32776, 32769, 0},
                                          {2, 57344, 57343, 2},
                                          {2, 57352, 57345, 0},
                                          {2, 50257, 50257, 3}};

/// Logits are exact in every precision and often tie, so that hits are well defined.
TEST_P(TransformerConformanceTest, TokenCrossEntropy) {
  for (const LossCase& c : kLossCases) {
    const Shape shape{c.rows, c.columns};
    const auto run = [&](Bench& bench, bool in_place, MetricSums& metrics) {
      Values values = random_eighths(c.rows * c.columns, 1, 3.0);
      for (std::size_t i = 0; i < values.size(); ++i) {  // whatever stands in the padding
        if (static_cast<std::int64_t>(i) % c.columns >= c.vocabulary) values[i] = i % 2 == 0 ? 100.0 : std::nan("");
      }
      const TokenBatch batch = random_tokens(bench, 8, 6, c.vocabulary);
      const std::vector<std::uint16_t> text = random_text(batch.source.window_count * 6 + 1, c.vocabulary);
      for (std::int64_t row = 0; row < c.rows; ++row) {  // misses, hits, and ties with other columns
        const auto place = static_cast<std::uint32_t>(c.first + row);
        const std::uint32_t window = BatchRows(batch.order, std::uint64_t{4})[place / 6];
        const std::int64_t target = text[window * 6 + place % 6 + 1];
        if (row % 3 > 0) values[static_cast<std::size_t>(row * c.columns + target)] = row % 3 == 1 ? 3.0 : 3.5;
      }
      const Tensor logits = bench.put(values, shape);
      const Tensor dlogits = in_place ? logits : bench.poisoned(shape);
      auto* sums = bench.put_object(MetricSums{1.5, 2, 3});
      bench.device().get<LossOps>().token_cross_entropy(logits, batch, c.first, c.vocabulary, 0.125f, dlogits, sums);
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, shape), batch, c.first, c.vocabulary, 0.0f,
                                                        Tensor{}, sums);
      metrics = bench.take_object(sums);
      return bench.take(dlogits);
    };
    for (const bool in_place : {false, true}) {
      if (c.rows + c.first > 48) continue;
      Bench tested(*tested_);
      Bench oracle(*oracle_, tested_->dtype());
      MetricSums metrics, expected_metrics;
      const Values out = run(tested, in_place, metrics);
      const Values expected = run(oracle, in_place, expected_metrics);
      EXPECT_LE(relative_error(out, expected), GetParam().tolerance) << describe(shape);
      EXPECT_NEAR(metrics.loss, expected_metrics.loss, 1e-5 * expected_metrics.loss) << describe(shape);
      EXPECT_EQ(metrics.correct, expected_metrics.correct) << describe(shape);
      EXPECT_EQ(metrics.samples, expected_metrics.samples) << describe(shape);
      for (std::size_t i = 0; i < out.size(); ++i) {
        const bool padding = static_cast<std::int64_t>(i) % c.columns >= c.vocabulary;
        ASSERT_TRUE(!padding || out[i] == 0.0) << describe(shape);
      }
    }
  }
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

/// Where the loss of a row is not finite, its gradient is NaN; other rows do not notice. (Of a token that has
/// probability 0, softmax - onehot would be finite.)
TEST_P(TransformerConformanceTest, TheGradientOfALossThatIsNotFiniteIsNan) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  for (const std::int64_t columns : {64, 20096, 50257, 50304, 60000}) {
    const std::int64_t vocabulary = columns - 7;
    const std::vector<std::pair<std::int64_t, double>> changes = {{3, -kInfinity},
                                                                  {1, kInfinity},
                                                                  {vocabulary - 1, kInfinity},
                                                                  {1, std::nan("")},
                                                                  {vocabulary - 1, std::nan("")}};
    for (const auto& [column, value] : changes) {
      SCOPED_TRACE(fmt::format("{} in column {} of {}", value, column, columns));
      Bench bench(*tested_);
      const TokenBatch batch = put_tokens(bench, {1, 2, 3, 4, 5}, 2, 2, 0);
      Values values = random_values(4 * columns, 3);
      values[static_cast<std::size_t>(columns + column)] = value;  // of the second row, whose target is 3
      const Tensor dlogits = bench.poisoned({4, columns});
      MetricSums* sums = bench.put_object(MetricSums{});
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, {4, columns}), batch, 0, vocabulary, 1.0f,
                                                        dlogits, sums);
      EXPECT_FALSE(std::isfinite(bench.take_object(sums).loss));
      const Values gradient = bench.take(dlogits);
      for (std::int64_t i = 0; i < 4 * columns; ++i) {
        if (i % columns >= vocabulary) continue;
        ASSERT_EQ(std::isfinite(gradient[static_cast<std::size_t>(i)]), i / columns != 1) << i;
      }
    }
  }
}

/// A column of minus infinity is one that cannot come: the others are as if it were not there.
TEST_P(TransformerConformanceTest, MaskedColumnsTakeNoPart) {
  for (const std::int64_t columns : {64, 20096, 50304, 60000}) {
    Values values = random_eighths(4 * columns, 3, 3.0);
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (i % 5 == 4 || i % static_cast<std::size_t>(columns) > 40)
        values[i] = -std::numeric_limits<double>::infinity();
    }
    for (std::int64_t row = 0; row < 4; ++row) {  // no target is masked
      for (std::int64_t target = 1; target < 6; ++target) {
        values[static_cast<std::size_t>(row * columns + target)] = 0.125 * static_cast<double>(target);
      }
    }
    const auto run = [&](Bench& bench, MetricSums& metrics) {
      const TokenBatch batch = put_tokens(bench, {1, 2, 3, 4, 5}, 2, 2, 0);
      const Tensor dlogits = bench.poisoned({4, columns});
      MetricSums* sums = bench.put_object(MetricSums{});
      bench.device().get<LossOps>().token_cross_entropy(bench.put(values, {4, columns}), batch, 0, columns, 1.0f,
                                                        dlogits, sums);
      metrics = bench.take_object(sums);
      return bench.take(dlogits);
    };
    Bench tested(*tested_);
    Bench oracle(*oracle_, tested_->dtype());
    MetricSums metrics, expected_metrics;
    const Values out = run(tested, metrics), expected = run(oracle, expected_metrics);
    EXPECT_LE(relative_error(out, expected), GetParam().tolerance) << columns;
    EXPECT_NEAR(metrics.loss, expected_metrics.loss, 1e-5 * expected_metrics.loss) << columns;
    for (std::size_t i = 0; i < out.size(); ++i) {
      ASSERT_TRUE(std::isfinite(values[i]) || out[i] == 0.0) << columns << ": " << i;
    }
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
}  // namespace ddptrain::testing
