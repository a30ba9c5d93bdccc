// Sums in a fixed order, against their definition.

#include "runtime/ops/reduction.h"
#include "tests/ops/bench.h"
#include "tests/ops/optimizer_case.h"

namespace ddptrain::tests {
namespace {

class ReductionTest : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  void SetUp() override {
    const DeviceCase& device = GetParam().device;
    if (device.kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device(device);
    bench_ = std::make_unique<Bench>(*device_, GetParam().weights);
  }

  DType node_type() { return bench_->put_master({0.0}, {1}).dtype; }  ///< Of master weights.

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
};

INSTANTIATE_TEST_SUITE_P(Devices, ReductionTest, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& param) { return param.param.device.name; });

/// Sums of these depend on the order of their terms in every type.
Values terms(std::int64_t count, std::uint32_t seed) {
  Values values = random_values(count, seed);
  for (std::size_t i = 0; i < values.size(); i += 3) values[i] *= 1e3;
  return values;
}

/// The sum of values[first .. first + count), each addition rounded to `dtype`.
double tree_of(const Values& values, std::size_t first, std::size_t count, DType dtype) {
  if (count == 1) return values[first];
  return rounded_to(dtype,
                    tree_of(values, first, count / 2, dtype) + tree_of(values, first + count / 2, count / 2, dtype));
}

TEST_P(ReductionTest, AddsTreesInTheirOrder) {
  const DType leaf = GetParam().gradients;
  const DType node = node_type();
  for (const std::int64_t rows : {1, 2, 4, 8, 16, 64}) {
    for (const std::int64_t count : {1, 37, 1024}) {
      const Tensor leaves = bench_->put_as(terms(rows * count, 21), leaf, {rows, count});
      const Values all = bench_->take(leaves);
      for (const DType root : {leaf, node}) {
        const Tensor sum = bench_->put_as(Values(static_cast<std::size_t>(count), std::nan("")), root, {count});
        device_->get<ReductionOps>().add_tree(leaves, sum, device_->compute_stream());
        Values expected;
        for (std::int64_t i = 0; i < count; ++i) {
          Values column;
          for (std::int64_t row = 0; row < rows; ++row)
            column.push_back(all[static_cast<std::size_t>(row * count + i)]);
          expected.push_back(rounded_to(root, tree_of(column, 0, column.size(), node)));
        }
        EXPECT_EQ(bench_->take(sum), expected) << rows << " rows of " << count;
      }
    }
  }
  const Tensor three = bench_->put_as(terms(12, 21), leaf, {3, 4});
  const Tensor sum = bench_->put_as(Values(4, 0.0), leaf, {4});
  EXPECT_THROW(device_->get<ReductionOps>().add_tree(three, sum, device_->compute_stream()), Error);
}

/// A leaf, a leaf that was put away, and sums of more and more of them.
TEST_P(ReductionTest, AddsNodesFromTheFirstOnAndRoundsOnce) {
  const DType leaf = GetParam().gradients;
  const DType node = node_type();
  for (const std::int64_t count : {1, 37, 4096}) {
    for (std::size_t most = 1; most <= 4; ++most) {
      for (const DType root : {leaf, node}) {
        std::vector<Tensor> nodes;
        std::vector<Values> values;
        for (std::size_t i = 0; i < most; ++i) {
          nodes.push_back(
              bench_->put_as(terms(count, static_cast<std::uint32_t>(31 + i)), i < 2 ? leaf : node, {count}));
          values.push_back(bench_->take(nodes.back()));
        }
        Values expected;
        for (std::size_t k = 0; k < values[0].size(); ++k) {
          double sum = values[0][k];
          for (std::size_t i = 1; i < most; ++i) sum = rounded_to(node, values[i][k] + sum);
          expected.push_back(rounded_to(root, sum));
        }
        const Tensor sum = root == leaf ? nodes[0] : bench_->put_as(Values(values[0].size(), 0.0), root, {count});
        device_->get<ReductionOps>().add_nodes(nodes, sum, device_->compute_stream());
        EXPECT_EQ(bench_->take(sum), expected) << most << " nodes of " << count;
      }
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
