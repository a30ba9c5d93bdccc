#include "runtime/ops/gated.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

/// Columns with and without whole packs, and more than a thread block takes at a time.
TEST_P(TransformerConformanceTest, Swiglu) {
  for (const std::int64_t hidden : {1, 3, 8, 20, 64, 1032, 4864}) {
    for (const std::int64_t rows : {1, 37}) {
      compare(describe({rows, hidden}), [&](Bench& bench) -> Outputs {
        const Tensor pre = put(bench, {rows, 2 * hidden}, 1, 6.0);
        const Tensor y = bench.poisoned({rows, hidden});
        const Tensor dpre = bench.poisoned(pre.shape);
        bench.device().get<GatedOps>().swiglu(pre, y);
        const Tensor again = bench.poisoned(y.shape), dpre_alone = bench.poisoned(pre.shape);
        bench.device().get<GatedOps>().swiglu_backward(pre, put(bench, y.shape, 2), dpre, again);
        bench.device().get<GatedOps>().swiglu_backward(pre, put(bench, y.shape, 2), dpre_alone, Tensor{});
        EXPECT_EQ(bench.take(again), bench.take(y));
        EXPECT_EQ(bench.take(dpre_alone), bench.take(dpre));
        return {{"y", bench.take(y)}, {"dpre", bench.take(dpre)}};
      });
    }
  }
}

/// exp() of a gate leaves the range of an f32.
TEST_P(TransformerConformanceTest, SwigluOfLargeGates) {
  compare("large gates", [&](Bench& bench) -> Outputs {
    const Tensor pre = bench.put({-200, -90, -0.0, 0.0, 90, 200, -3e4, 3e4, 1, 1, 1, 1, 1, 1, 1, 1}, {1, 16});
    const Tensor y = bench.poisoned({1, 8});
    const Tensor dpre = bench.poisoned({1, 16});
    bench.device().get<GatedOps>().swiglu(pre, y);
    bench.device().get<GatedOps>().swiglu_backward(pre, put(bench, {1, 8}, 2), dpre, Tensor{});
    return {{"y", bench.take(y)}, {"dpre", bench.take(dpre)}};
  });
}

}  // namespace
}  // namespace ddptrain::tests
