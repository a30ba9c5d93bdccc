#include "runtime/ops/cuda/gemm/gelu_product.h"

#include <gtest/gtest.h>

#include "runtime/ops/linear.h"
#include "tests/ops/conformance.h"
#include "tests/ops/cuda/tile_products.h"
#include "tests/ops/cuda/warpgroup_test.h"

namespace ddptrain::tests {
namespace {

class GeluProductTest : public WarpgroupTest<ProductCase> {
 protected:
  void prepare() override {
    x_ = put(*bench_, {c_.rows, c_.width}, 1, 2.0);
    up_ = put(*bench_, {c_.hidden, c_.width}, 2, 0.2);
    bias_ = put(*bench_, {c_.hidden}, 3);
    pre_ = put(*bench_, {c_.rows, c_.hidden}, 4, 3.0);
    down_ = put(*bench_, {c_.width, c_.hidden}, 5, 0.2);
  }

  struct Forward {
    Values pre, y;
    bool operator==(const Forward&) const = default;
  };
  Forward forward(int clusters = kAllClusters) {
    const Tensor pre = bench_->poisoned(pre_.shape), y = bench_->poisoned(pre_.shape);
    EXPECT_TRUE(cuda::try_linear_gelu(x_, up_, bias_, pre, y, clusters, stream()));
    return {bench_->take(pre), bench_->take(y)};
  }
  struct Backward {
    Values dpre, dbias;
    bool operator==(const Backward&) const = default;
  };
  Backward backward(bool accumulate = false, int clusters = kAllClusters) {
    const Tensor dpre = bench_->poisoned(pre_.shape);
    const Tensor dbias = gradient(*bench_, {.accumulate = accumulate, .master = true}, {c_.hidden});
    EXPECT_TRUE(
        cuda::try_linear_gelu_backward(down_, x_, pre_, dpre, dbias, accumulate, clusters, gpu().scratch(), stream()));
    return {bench_->take(dpre), bench_->take(dbias)};
  }

  ProductCase c_ = GetParam();
  Tensor x_, up_, bias_, pre_, down_;  ///< x_ is also the gradient of what down_ gives.
};

TEST_P(GeluProductTest, ForwardEqualsProductAndGelu) {
  const Forward fused = forward();
  const Tensor pre = bench_->poisoned(pre_.shape), y = bench_->poisoned(pre_.shape);
  device_->get<LinearOps>().linear(x_, up_, bias_, pre);
  EXPECT_LT(relative_error(fused.pre, bench_->take(pre)), 1e-3);
  device_->get<LinearOps>().gelu(bench_->put(fused.pre, pre_.shape), y);
  EXPECT_EQ(fused.y, bench_->take(y));
}

TEST_P(GeluProductTest, BackwardEqualsProductAndGeluBackward) {
  for (const bool accumulate : {false, true}) {
    const Tensor dpre = bench_->poisoned(pre_.shape);
    const Tensor dbias = gradient(*bench_, {.accumulate = accumulate, .master = true}, {c_.hidden});
    device_->get<LinearOps>().linear_gelu_backward(down_, x_, pre_, dpre, dbias, accumulate);
    const Values expected = bench_->take(dbias);
    const Backward fused = backward(accumulate);
    EXPECT_LT(relative_error(fused.dpre, bench_->take(dpre)), 5e-3);
    EXPECT_LT(relative_error(fused.dbias, expected), 2e-3);
  }
}

/// A cluster then computes many tiles.
TEST_P(GeluProductTest, GivesTheSameBitsWithFewerClusters) {
  for (const int clusters : {1, 2}) {
    EXPECT_EQ(forward(), forward(clusters));
    EXPECT_EQ(backward(), backward(false, clusters));
  }
}

TEST_P(GeluProductTest, LeavesColumnsAloneThatItsPiecesDoNotFit) {
  const std::int64_t hidden = c_.hidden - 8;
  const Tensor up = put(*bench_, {hidden, c_.width}, 2), down = put(*bench_, {c_.width, hidden}, 2);
  const Tensor bias = put(*bench_, {hidden}, 3);
  const Tensor pre = bench_->poisoned({c_.rows, hidden}), y = bench_->poisoned({c_.rows, hidden});
  EXPECT_FALSE(cuda::try_linear_gelu(x_, up, bias, pre, y, kAllClusters, stream()));
  EXPECT_FALSE(
      cuda::try_linear_gelu_backward(down, x_, pre, pre, bias, false, kAllClusters, gpu().scratch(), stream()));
}

INSTANTIATE_TEST_SUITE_P(Shapes, GeluProductTest, ::testing::ValuesIn(kProductCases), name_of_case);
INSTANTIATE_TEST_SUITE_P(MostColumns, GeluProductTest, ::testing::Values(ProductCase{200, 8192, 64}), name_of_case);

}  // namespace
}  // namespace ddptrain::tests
