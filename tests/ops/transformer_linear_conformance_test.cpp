#include "runtime/device/tuned_choices.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/linear.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

struct LinearCase {
  std::int64_t rows, in, out;
};
const std::vector<LinearCase> kLinearCases = {{1, 1, 1}, {7, 12, 5}, {96, 64, 256}, {200, 96, 384}, {1000, 768, 64}};

/// Rows that a GPU multiplies by a kernel of its own.
TEST_P(TransformerConformanceTest, LinearOfFewRows) {
  const std::vector<LinearCase> cases = {{1, 8, 1},     {1, 24, 40},   {1, 1536, 257},  {1, 8960, 64},   {2, 1048, 70},
                                         {3, 4096, 33}, {4, 256, 96},  {5, 1032, 7},    {8, 264, 33},    {9, 264, 33},
                                         {7, 9000, 40}, {1, 12000, 3}, {1, 18944, 140}, {1, 1536, 30000}};
  for (const LinearCase& c : cases) {
    for (const bool biased : {false, true}) {
      compare(describe({c.rows, c.in, c.out}), [&](Bench& bench) -> Outputs {
        const Tensor bias = biased ? put(bench, {c.out}, 3) : Tensor{};
        const Tensor y = bench.poisoned({c.rows, c.out});
        bench.device().get<LinearOps>().linear(put(bench, {c.rows, c.in}, 1), put(bench, {c.out, c.in}, 2, 0.2), bias,
                                               y);
        return {{"y", bench.take(y)}};
      });
    }
  }
}

void check_linear_swiglu(TransformerConformanceTest& test, const LinearCase& c, bool biased) {
  test.compare(describe({c.rows, c.in, c.out}), [&](Bench& bench) -> Outputs {
    const Tensor bias = biased ? put(bench, {2 * c.out}, 3) : Tensor{};
    const Tensor pre = bench.poisoned({c.rows, 2 * c.out});
    const Tensor y = bench.poisoned({c.rows, c.out}), again = bench.poisoned(y.shape);
    bench.device().get<LinearOps>().linear_swiglu(put(bench, {c.rows, c.in}, 1), put(bench, {2 * c.out, c.in}, 2, 0.2),
                                                  bias, pre, y);
    bench.device().get<GatedOps>().swiglu(pre, again);
    EXPECT_EQ(bench.take(again), bench.take(y));
    return {{"pre", bench.take(pre)}, {"y", bench.take(y)}};
  });
}

/// Also rows that a GPU multiplies by a kernel of its own.
TEST_P(TransformerConformanceTest, LinearSwiglu) {
  const std::vector<LinearCase> cases = {{1, 8, 1},     {1, 24, 20},   {1, 1536, 1000}, {1, 8960, 24},
                                         {2, 1048, 70}, {3, 4096, 33}, {5, 1032, 7},    {8, 264, 33},
                                         {9, 264, 32},  {7, 12, 5},    {96, 64, 128}};
  for (const LinearCase& c : cases) {
    for (const bool biased : {false, true}) check_linear_swiglu(*this, c, biased);
  }
}

/// `again`: computes the SwiGLU, too.
void check_linear_swiglu_backward(TransformerConformanceTest& test, const LinearCase& c, bool again) {
  test.compare(describe({c.rows, c.in, c.out}, again ? "with SwiGLU" : ""), [&](Bench& bench) -> Outputs {
    const Tensor weight = put(bench, {c.out, c.in}, 1, 0.2), dy = put(bench, {c.rows, c.out}, 2);
    const Tensor pre = put(bench, {c.rows, 2 * c.in}, 3, 3.0);
    const Tensor product = bench.poisoned({c.rows, c.in}), dpre = bench.poisoned(pre.shape);
    const Tensor y = bench.poisoned(product.shape), expected = bench.poisoned(product.shape);
    bench.device().get<LinearOps>().linear_swiglu_backward(weight, dy, pre, product, dpre, again ? y : Tensor{});
    bench.device().get<GatedOps>().swiglu(pre, expected);
    if (again) {
      EXPECT_EQ(bench.take(expected), bench.take(y));
    }
    return {{"dpre", bench.take(dpre)}};
  });
}

TEST_P(TransformerConformanceTest, LinearSwigluBackward) {
  for (const LinearCase& c : kLinearCases) {
    for (const bool again : {false, true}) check_linear_swiglu_backward(*this, c, again);
  }
}

AddedNorm put_norm(Bench& bench, const LinearCase& c) {
  const Shape shape{1, c.rows, c.in};
  return {.residual = put(bench, shape, 4, 2.0),
          .branch = put(bench, shape, 5),
          .weight = put(bench, {c.in}, 6),
          .epsilon = kEpsilon,
          .sum = bench.poisoned(shape),
          .y = bench.poisoned(shape),
          .statistics = put_statistics(bench, {c.rows, 1})};
}

/// Also one row, whose norm a GPU computes in the product's kernel.
TEST_P(TransformerConformanceTest, NormLinear) {
  const std::vector<LinearCase> cases = {{1, 8, 2},     {1, 24, 40},    {1, 1536, 256}, {1, 8960, 64}, {1, 3584, 300},
                                         {1, 5000, 70}, {1, 18944, 10}, {1, 7, 6},      {2, 1048, 70}, {96, 64, 128}};
  for (const LinearCase& c : cases) {
    for (const bool gated : {false, true}) {
      compare(describe({c.rows, c.in, c.out}, gated ? "with SwiGLU" : ""), [&](Bench& bench) -> Outputs {
        const AddedNorm norm = put_norm(bench, c);
        const Tensor weight = put(bench, {c.out, c.in}, 2, 0.2), bias = put(bench, {c.out}, 3);
        const Tensor product = bench.poisoned({c.rows, c.out}), y = bench.poisoned({c.rows, c.out / 2});
        auto& ops = bench.device().get<LinearOps>();
        if (!gated) {
          ops.norm_linear(norm, weight, bias, product);
          return {{"sum", bench.take(norm.sum)}, {"y", bench.take(product)}};
        }
        ops.norm_linear_swiglu(norm, weight, bias, product, y);
        return {{"sum", bench.take(norm.sum)}, {"pre", bench.take(product)}, {"y", bench.take(y)}};
      });
    }
  }
}

/// `again`: whether gelu() must give the same bits.
void check_linear_gelu(TransformerConformanceTest& test, const LinearCase& c, bool again) {
  test.compare(describe({c.rows, c.in, c.out}), [&](Bench& bench) -> Outputs {
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
    for (const bool again : {true, false}) check_linear_gelu(*this, c, again);
  }
}

void check_linear_gelu_backward(TransformerConformanceTest& test, const LinearCase& c, GradientCase gradients) {
  test.compare(describe({c.rows, c.in, c.out}, gradients), [&](Bench& bench) -> Outputs {
    const Tensor weight = put(bench, {c.out, c.in}, 1), dy = put(bench, {c.rows, c.out}, 2);
    const Tensor pre = put(bench, {c.rows, c.in}, 3, 3.0);
    const Tensor dpre = bench.poisoned(pre.shape);
    const Tensor dbias = gradient(bench, gradients, {c.in});
    bench.device().get<LinearOps>().linear_gelu_backward(weight, dy, pre, dpre, dbias, gradients.accumulate);
    return {{"dpre", bench.take(dpre)}, {"dbias", bench.take(dbias)}};
  });
}

TEST_P(TransformerConformanceTest, LinearGeluBackward) {
  for (const LinearCase& c : kLinearCases) {
    for (const GradientCase gradients : kGradientCases) check_linear_gelu_backward(*this, c, gradients);
  }
}

/// With --tune on, the first call of a shape is timed. It adds to the gradient once.
TEST_P(TransformerConformanceTest, LinearGeluBackwardThatFirstAdds) {
  for (const LinearCase& c : {LinearCase{264, 320, 128}, LinearCase{4096, 1024, 256}}) {
    check_linear_gelu_backward(*this, c, {.accumulate = true, .master = true});
  }
}

/// In the order of Tuner's names: of linear_gelu, of the same if gelu() must give the same bits, and of
/// linear_gelu_backward.
const std::vector<std::string> kGeluWays = {"separate", "gelu by tiles", "gelu in the epilogue"};
const std::vector<std::string> kRepeatedGeluWays = {"separate", "gelu by tiles"};
const std::vector<std::string> kGeluGradientWays = {"separate", "gelu in the epilogue", "gelu by tiles"};
/// Of linear_swiglu, and of linear_swiglu_backward.
const std::vector<std::string> kSwigluWays = {"separate", "SwiGLU in the epilogue"};
const std::vector<std::string> kSwigluGradientWays = {"separate", "SwiGLU in the epilogue",
                                                      "SwiGLU in the epilogue by seven warps"};

/// As Tuner names work.
std::string work_of(const std::string& operation, const std::vector<std::string>& ways, const std::string& product) {
  return fmt::format("{} ({}): bf16 {} bf16 bf16 bf16", operation, fmt::join(ways, ", "), product);
}

/// Products may be timed, but not the ways of an operation, whose choices were all given.
void expect_no_way_was_timed(TunedChoices& choices) {
  for (const auto& [work, choice] : choices.take_new()) {
    EXPECT_EQ(work.rfind("matrix product", 0), 0u) << work << " was timed";
  }
}

/// Rows of whole packs of 16 bytes, which epilogues want.
const std::vector<LinearCase> kAlignedCases = {
    {1, 8, 8}, {40, 64, 256}, {129, 72, 264}, {300, 512, 136}, {257, 1024, 768}};

/// Every way that --tune on can choose, as if a cache had it. A way that a product cannot be computed in runs as the
/// first one.
TEST_P(TransformerConformanceTest, LinearGeluInAllWays) {
  if (!GetParam().name.ends_with("tuned")) GTEST_SKIP() << "without --tune on there is one way";
  std::vector<LinearCase> cases = kAlignedCases;
  cases.insert(cases.end(), {{9, 64, 64}, {300, 512, 192}, {257, 320, 448}, {1000, 448, 320}, {2100, 64, 1088}});
  for (const std::string& way : kGeluGradientWays) {
    SCOPED_TRACE(way);
    make_tested();
    TunedChoices::Map choices;
    for (const LinearCase& c : cases) {
      const std::string forward = fmt::format("{} x {} x {} nt", c.rows, c.out, c.in);
      const std::string backward = fmt::format("{} x {} x {} nn", c.rows, c.in, c.out);
      choices[work_of("linear and gelu", kGeluWays, forward)] = way;
      choices[work_of("linear and gelu that repeats", kRepeatedGeluWays, forward)] = way;
      choices[work_of("gelu gradient", kGeluGradientWays, backward)] = way;
    }
    auto& tuned = tested_->get<TunedChoices>();
    tuned.restore(choices);
    for (const LinearCase& c : cases) {
      for (const bool again : {false, true}) check_linear_gelu(*this, c, again);
      for (const GradientCase gradients : kGradientCases) check_linear_gelu_backward(*this, c, gradients);
    }
    expect_no_way_was_timed(tuned);
  }
}

/// The same. A kernel with the SwiGLU in its epilogue wants multiples of 64 columns.
TEST_P(TransformerConformanceTest, LinearSwigluInAllWays) {
  if (!GetParam().name.ends_with("tuned")) GTEST_SKIP() << "without --tune on there is one way";
  const std::vector<LinearCase> cases = {{9, 64, 64},     {129, 72, 264},   {300, 512, 192},
                                         {257, 320, 448}, {1000, 448, 320}, {2100, 64, 1088}};
  for (const std::string& way : kSwigluGradientWays) {
    SCOPED_TRACE(way);
    make_tested();
    TunedChoices::Map choices;
    for (const LinearCase& c : cases) {
      const std::string forward = fmt::format("{} x {} x {} nt", c.rows, 2 * c.out, c.in);
      const std::string backward = fmt::format("{} x {} x {} nn", c.rows, c.in, c.out);
      choices[work_of("linear and SwiGLU", kSwigluWays, forward)] = way;
      choices[work_of("SwiGLU gradient", kSwigluGradientWays, backward)] = way;
      choices[work_of("SwiGLU gradient and SwiGLU again", kSwigluGradientWays, backward)] = way;
    }
    auto& tuned = tested_->get<TunedChoices>();
    tuned.restore(choices);
    for (const LinearCase& c : cases) {
      check_linear_swiglu(*this, c, false);
      for (const bool again : {false, true}) check_linear_swiglu_backward(*this, c, again);
    }
    expect_no_way_was_timed(tuned);
  }
}

TEST_P(TransformerConformanceTest, LinearBackward) {
  std::vector<LinearCase> cases = kLinearCases;
  cases.insert(cases.end(), {{1, 8, 8}, {3, 9216, 128}, {17, 33, 10}, {300, 128, 10}, {5, 7, 3}, {132, 576, 40}});
  for (const LinearCase& c : cases) {
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

}  // namespace
}  // namespace ddptrain::tests
