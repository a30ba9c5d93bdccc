#include "runtime/ops/cuda/gemm/swiglu_product.h"

#include <gtest/gtest.h>

#include "runtime/ops/gated.h"
#include "runtime/ops/linear.h"
#include "tests/ops/conformance.h"
#include "tests/ops/cuda/tile_products.h"
#include "tests/ops/cuda/warpgroup_test.h"

namespace ddptrain::tests {
namespace {

using cuda::FinishingWarps;

constexpr FinishingWarps kFinishingWarps[] = {FinishingWarps::three, FinishingWarps::seven};

class SwigluProductTest : public WarpgroupTest<ProductCase> {
 protected:
  void prepare() override {
    x_ = put(*bench_, {c_.rows, c_.width}, 1, 2.0);
    up_ = put(*bench_, {2 * c_.hidden, c_.width}, 2, 0.2);
    pre_ = put(*bench_, {c_.rows, 2 * c_.hidden}, 3, 3.0);
    down_ = put(*bench_, {c_.width, c_.hidden}, 4, 0.2);
  }

  struct Forward {
    Values pre, y;
  };
  Forward forward(int clusters = kAllClusters) {
    const Tensor pre = bench_->poisoned(pre_.shape), y = bench_->poisoned({c_.rows, c_.hidden});
    EXPECT_TRUE(cuda::try_linear_swiglu(x_, up_, pre, y, clusters, stream()));
    return {bench_->take(pre), bench_->take(y)};
  }
  /// The gradient of pre. `y` may be without data.
  Values backward(cuda::FinishingWarps warps, const Tensor& y = {}, int clusters = kAllClusters) {
    const Tensor dpre = bench_->poisoned(pre_.shape);
    EXPECT_TRUE(cuda::try_linear_swiglu_backward(down_, x_, pre_, dpre, y, warps, clusters, stream()));
    return bench_->take(dpre);
  }

  ProductCase c_ = GetParam();
  Tensor x_, up_, pre_, down_;  ///< x_ is also the gradient of what down_ gives.
};

TEST_P(SwigluProductTest, ForwardEqualsProductAndSwiglu) {
  const Forward fused = forward();
  const Tensor pre = bench_->poisoned(pre_.shape), y = bench_->poisoned({c_.rows, c_.hidden});
  device_->get<LinearOps>().linear(x_, up_, {}, pre);
  EXPECT_LT(relative_error(fused.pre, bench_->take(pre)), 1e-3);
  device_->get<GatedOps>().swiglu(bench_->put(fused.pre, pre_.shape), y);
  EXPECT_EQ(fused.y, bench_->take(y));
}

TEST_P(SwigluProductTest, BackwardEqualsProductAndSwigluBackward) {
  const Tensor product = bench_->poisoned({c_.rows, c_.hidden}), dpre = bench_->poisoned(pre_.shape);
  device_->get<LinearOps>().linear_backward({}, down_, x_, product, {}, {}, false);
  device_->get<GatedOps>().swiglu_backward(pre_, product, dpre, {});
  const Values fused = backward(FinishingWarps::three);
  EXPECT_LT(relative_error(fused, bench_->take(dpre)), 5e-3);
  EXPECT_EQ(fused, backward(FinishingWarps::seven));
}

TEST_P(SwigluProductTest, BackwardGivesSwigluAgain) {
  const Tensor expected = bench_->poisoned({c_.rows, c_.hidden});
  device_->get<GatedOps>().swiglu(pre_, expected);
  for (const FinishingWarps warps : kFinishingWarps) {
    const Tensor y = bench_->poisoned(expected.shape);
    EXPECT_EQ(backward(warps), backward(warps, y));
    EXPECT_EQ(bench_->take(y), bench_->take(expected));
  }
}

/// A cluster then computes many tiles.
TEST_P(SwigluProductTest, GivesTheSameBitsWithFewerClusters) {
  for (const int clusters : {1, 2}) {
    const Forward many = forward(), few = forward(clusters);
    EXPECT_EQ(many.pre, few.pre);
    EXPECT_EQ(many.y, few.y);
    for (const FinishingWarps warps : kFinishingWarps) EXPECT_EQ(backward(warps), backward(warps, {}, clusters));
  }
}

TEST_P(SwigluProductTest, LeavesColumnsAloneThatItsPiecesDoNotFit) {
  const std::int64_t hidden = c_.hidden - 8;
  const Tensor up = put(*bench_, {2 * hidden, c_.width}, 2), down = put(*bench_, {c_.width, hidden}, 2);
  const Tensor pre = bench_->poisoned({c_.rows, 2 * hidden}), y = bench_->poisoned({c_.rows, hidden});
  EXPECT_FALSE(cuda::try_linear_swiglu(x_, up, pre, y, kAllClusters, stream()));
  EXPECT_FALSE(cuda::try_linear_swiglu_backward(down, x_, pre, pre, y, FinishingWarps::three, kAllClusters, stream()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, SwigluProductTest, ::testing::ValuesIn(kProductCases), name_of_case);

}  // namespace
}  // namespace ddptrain::tests
