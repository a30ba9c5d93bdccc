#include "runtime/ops/cuda/output_layer/output_products.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <string>

#include "runtime/device/cuda/cuda_device.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "tests/ops/conformance.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

using cuda::FinishingWarps;

struct OutputCase {
  std::int64_t rows, width, columns, vocabulary;
};

/// The kernels themselves, against one operation after another on the same GPU.
class OutputProductsTest : public ::testing::TestWithParam<OutputCase> {
 protected:
  static constexpr int kAllClusters = 66;  // of an H100
  static constexpr float kScale = 0.125f;
  static constexpr std::uint32_t kSequence = 20;

  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device({"cuda_bf16", DeviceKind::cuda, Precision::bf16});
    if (!cuda::multiplies_by_warpgroups()) GTEST_SKIP() << "this GPU has no warpgroup instructions";
    bench_ = std::make_unique<Bench>(*device_);
    Values weight = random_values(c_.vocabulary * c_.width, 2, -0.3, 0.3);
    weight.resize(static_cast<std::size_t>(c_.columns * c_.width), 0.0);
    rows_ = {put(*bench_, {c_.rows, c_.width}, 1, 2.0),
             bench_->put(weight, {c_.columns, c_.width}),
             bench_->poisoned({c_.rows, c_.columns}),
             random_tokens(*bench_, (c_.rows + kSequence) / kSequence, kSequence, c_.vocabulary),
             1,
             c_.vocabulary};
    all_ = dynamic_cast<CudaDevice&>(*device_).multiprocessors();
    ASSERT_TRUE(cuda::suits_output_products(rows_));
    memory_ = device_->allocate(cuda::OutputWorkspace(rows_, all_, nullptr).bytes());
  }

  cuda::OutputWorkspace workspace() const { return {rows_, all_, memory_.data()}; }
  cuda::OutputProducts products(const cuda::OutputWorkspace& workspace) const {
    return {rows_, workspace, all_, dynamic_cast<CudaDevice&>(*device_).stream()};
  }

  struct Result {
    Values logits, gradients, d_x;
    MetricSums sums;

    bool operator==(const Result& other) const {
      return logits == other.logits && gradients == other.gradients && d_x == other.d_x &&
             sums.loss == other.sums.loss && sums.correct == other.sums.correct;
    }
  };
  Result run(FinishingWarps warps, int clusters = kAllClusters) {
    const cuda::OutputWorkspace workspace = this->workspace();
    const cuda::OutputProducts products = this->products(workspace);
    const Tensor d_x = bench_->poisoned(rows_.x.shape);
    auto* sums = bench_->put_object(MetricSums{1.5, 2, 3});
    Result result;
    products.logits(warps, clusters);
    result.logits = bench_->take(rows_.logits);
    products.loss(kScale, sums);
    products.input_gradient(d_x);
    result.gradients = bench_->take(rows_.logits);
    result.d_x = bench_->take(d_x);
    result.sums = bench_->take_object(sums);
    return result;
  }
  Result one_after_another() {
    const Tensor d_x = bench_->poisoned(rows_.x.shape);
    auto* sums = bench_->put_object(MetricSums{1.5, 2, 3});
    Result result;
    device_->get<LinearOps>().linear(rows_.x, rows_.weight, {}, rows_.logits);
    result.logits = bench_->take(rows_.logits);
    OutputLayerOps(*device_).loss(rows_, kScale, d_x, sums);
    result.gradients = bench_->take(rows_.logits);
    result.d_x = bench_->take(d_x);
    result.sums = bench_->take_object(sums);
    return result;
  }
  /// The columns that the kernel computes.
  Values first_columns(const Values& d_x) const {
    const std::int64_t width = std::min(c_.width, cuda::kGradientColumns);
    Values first;
    for (std::int64_t row = 0; row < c_.rows; ++row) {
      first.insert(first.end(), d_x.begin() + row * c_.width, d_x.begin() + row * c_.width + width);
    }
    return first;
  }

  OutputCase c_ = GetParam();
  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
  OutputRows rows_;
  Buffer memory_;
  int all_ = 0;
};

TEST_P(OutputProductsTest, EqualOneOperationAfterAnother) {
  const Result expected = one_after_another(), found = run(FinishingWarps::three);
  EXPECT_LT(relative_error(found.logits, expected.logits), 1e-3);
  EXPECT_LT(relative_error(found.gradients, expected.gradients), 1e-2);
  EXPECT_LT(relative_error(first_columns(found.d_x), first_columns(expected.d_x)), 1e-2);
  EXPECT_NEAR(found.sums.loss, expected.sums.loss, 1e-4 * expected.sums.loss);
  EXPECT_EQ(found.sums.samples, expected.sums.samples);
}

TEST_P(OutputProductsTest, LeaveTheOtherColumnsAlone) {
  const Values d_x = run(FinishingWarps::three).d_x;
  for (std::int64_t i = 0; i < c_.rows * c_.width; ++i) {
    ASSERT_EQ(std::isnan(d_x[static_cast<std::size_t>(i)]), i % c_.width >= cuda::kGradientColumns) << i;
  }
}

TEST_P(OutputProductsTest, GiveTheSameBitsAgainAndWithFewerClusters) {
  const Result first = run(FinishingWarps::three);
  for (const int clusters : {1, 3, kAllClusters}) {
    EXPECT_EQ(run(FinishingWarps::three, clusters), first) << clusters;
    EXPECT_EQ(run(FinishingWarps::seven, clusters), first) << clusters;
  }
}

TEST_P(OutputProductsTest, StatisticsAreThoseOfTheLogits) {
  const cuda::OutputWorkspace workspace = this->workspace();
  const cuda::OutputProducts products = this->products(workspace);
  const Shape shape{c_.rows, LossOps::kSoftmaxStatistics};
  const Tensor found = bench_->put_master(Values(static_cast<std::size_t>(element_count(shape))), shape);
  const Tensor expected = bench_->put_master(Values(static_cast<std::size_t>(element_count(shape))), shape);
  products.logits(FinishingWarps::three, kAllClusters);
  products.statistics(found);
  device_->get<LossOps>().partial_cross_entropy(rows_.logits, rows_.batch, rows_.first_row, c_.vocabulary, expected);
  const Values mine = bench_->take(found), right = bench_->take(expected);
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const double tolerance = i % 4 == 1 ? 1e-4 * right[i] : 0.0;  // sums have another order
    ASSERT_NEAR(mine[i], right[i], tolerance) << i;
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, OutputProductsTest,
                         ::testing::Values(OutputCase{1, 64, 128, 100}, OutputCase{129, 256, 512, 512},
                                           OutputCase{300, 192, 520, 513}, OutputCase{1000, 320, 1280, 1271},
                                           OutputCase{2560, 256, 20096, 20000}, OutputCase{520, 768, 50304, 50257},
                                           OutputCase{257, 1024, 2048, 2000}),
                         [](const auto& info) {
                           const OutputCase& c = info.param;
                           return std::to_string(c.rows) + "x" + std::to_string(c.columns) + "x" +
                                  std::to_string(c.width);
                         });

}  // namespace
}  // namespace ddptrain::tests
