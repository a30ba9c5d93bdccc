// Newton-Schulz iterations against plain loops in double.

#include "runtime/ops/optimizers/orthogonal.h"

#include <algorithm>
#include <cmath>

#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

struct Plain {
  std::size_t rows = 0;
  std::size_t columns = 0;
  Values values = {};

  double& at(std::size_t row, std::size_t column) { return values[row * columns + column]; }
  double at(std::size_t row, std::size_t column) const { return values[row * columns + column]; }
};

Plain product(const Plain& a, const Plain& b) {
  Plain c{a.rows, b.columns, Values(a.rows * b.columns, 0.0)};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t k = 0; k < a.columns; ++k) {
      for (std::size_t j = 0; j < b.columns; ++j) c.at(i, j) += a.at(i, k) * b.at(k, j);
    }
  }
  return c;
}

Plain transposed(const Plain& a) {
  Plain t{a.columns, a.rows, Values(a.values.size())};
  for (std::size_t i = 0; i < a.rows; ++i) {
    for (std::size_t j = 0; j < a.columns; ++j) t.at(j, i) = a.at(i, j);
  }
  return t;
}

/// As in the code of Jordan et al.: X = a X + (b A + c A A) X, A = X X^T, of the matrix or its transpose.
Plain reference(Plain x) {
  if (x.rows > x.columns) return transposed(reference(transposed(x)));
  const double length = norm(x.values);
  for (double& value : x.values) value /= length;
  for (int i = 0; i < 5; ++i) {
    const Plain a = product(x, transposed(x));
    Plain b = product(a, a);
    for (std::size_t k = 0; k < b.values.size(); ++k) b.values[k] = -4.7750 * a.values[k] + 2.0315 * b.values[k];
    const Plain bx = product(b, x);
    for (std::size_t k = 0; k < x.values.size(); ++k) x.values[k] = 3.4445 * x.values[k] + bx.values[k];
  }
  return x;
}

struct Rows {
  std::int64_t all;
  std::int64_t columns;
  RowBlocks blocks;
};

class OrthogonalTest : public DeviceTest {
 protected:
  void SetUp() override {
    DeviceTest::SetUp();
    if (device_ == nullptr) return;
    loose_ = GetParam().precision == Precision::bf16 ? 6e-2 : GetParam().precision == Precision::tf32 ? 1.5e-2 : 1e-4;
  }

  std::vector<DType> types() const {
    const DType master = master_dtype(device_->precision());
    return {master, DType::bf16};
  }

  /// Orthogonalises `rows` of the tensor in memory that holds NaN before.
  void orthogonalise(const Tensor& values, const RowBlocks& blocks, float scale) {
    const std::int64_t size = OrthogonalOps::workspace_size(blocks.rows(values.dim(0)), values.dim(1));
    device_->get<OrthogonalOps>().orthogonalise(values, blocks, scale, bench_->poisoned({size}));
  }

  Plain matrix_of(const Tensor& tensor, const RowBlocks& blocks) const {
    const Values values = bench_->take(tensor);
    Plain matrix{static_cast<std::size_t>(blocks.rows(tensor.dim(0))), static_cast<std::size_t>(tensor.dim(1))};
    for (std::size_t row = 0; row < matrix.rows; ++row) {
      const auto from = values.begin() + blocks.at(static_cast<std::int64_t>(row)) * tensor.dim(1);
      matrix.values.insert(matrix.values.end(), from, from + tensor.dim(1));
    }
    return matrix;
  }

  double loose_ = 0.0;
};

/// Wide, tall and square ones, vectors, columns of no multiple of anything, and interleaved rows.
TEST_P(OrthogonalTest, FollowsTheIterationAndLeavesOtherRowsAlone) {
  for (const Rows& rows :
       {Rows{48, 48, {0, 48, 48}}, Rows{24, 133, {0, 24, 24}}, Rows{200, 40, {0, 200, 200}}, Rows{1, 37, {0, 1, 1}},
        Rows{37, 1, {0, 37, 37}}, Rows{96, 32, {32, 32, 96}}, Rows{64, 65, {8, 4, 16}}, Rows{64, 24, {12, 4, 16}}}) {
    for (const DType type : types()) {
      SCOPED_TRACE(fmt::format("{} of {} x {}, {}", rows.blocks.run, rows.all, rows.columns, name_of(type)));
      const Values start = random_values(rows.all * rows.columns, 5);
      const Tensor values = bench_->put_as(start, type, {rows.all, rows.columns});
      const Values before = bench_->take(values);
      Plain expected = reference(matrix_of(values, rows.blocks));
      for (double& value : expected.values) value *= 1.5;
      orthogonalise(values, rows.blocks, 1.5f);
      EXPECT_LE(relative_error(matrix_of(values, rows.blocks).values, expected.values),
                std::max(loose_, type == DType::bf16 ? 5e-3 : 0.0));
      const Values after = bench_->take(values);
      for (std::int64_t row = 0; row < rows.all; ++row) {
        const std::int64_t in_block = row % rows.blocks.stride - rows.blocks.first;
        if (in_block >= 0 && in_block < rows.blocks.run) continue;
        for (std::int64_t i = row * rows.columns; i < (row + 1) * rows.columns; ++i) {
          ASSERT_EQ(after[static_cast<std::size_t>(i)], before[static_cast<std::size_t>(i)]) << "row " << row;
        }
      }
    }
  }
}

/// Products of small ones would underflow if they were not divided by the norm first.
TEST_P(OrthogonalTest, DoesNotDependOnTheSizeOfTheGradient) {
  const Values start = random_values(std::int64_t{32} * 80, 6);
  const Tensor expected = bench_->put_master(start, {32, 80});
  orthogonalise(expected, {0, 32, 32}, 1.0f);
  for (const double factor : {0x1p-30, 0x1p-10, 0x1p30}) {
    Values scaled = start;
    for (double& value : scaled) value *= factor;
    const Tensor values = bench_->put_master(scaled, {32, 80});
    orthogonalise(values, {0, 32, 32}, 1.0f);
    EXPECT_LE(relative_error(bench_->take(values), bench_->take(expected)), loose_) << factor;
  }
}

TEST_P(OrthogonalTest, SingularValuesAreNearOne) {
  const Tensor values = bench_->put_master(random_values(std::int64_t{40} * 160, 7), {40, 160});
  orthogonalise(values, {0, 40, 40}, 1.0f);
  const Plain x = matrix_of(values, {0, 40, 40});
  for (std::uint32_t seed = 0; seed < 20; ++seed) {  // between the smallest singular value and the largest
    const Plain v{1, 40, random_values(40, seed)};
    const double stretch = norm(product(v, x).values) / norm(v.values);
    EXPECT_GT(stretch, 0.65);
    EXPECT_LT(stretch, 1.25);
  }
}

TEST_P(OrthogonalTest, ZerosStayZerosAndNanStaysNan) {
  const Tensor zeros = bench_->put_master(Values(64, 0.0), {8, 8});
  orthogonalise(zeros, {0, 8, 8}, 1.0f);
  EXPECT_EQ(bench_->take(zeros), Values(64, 0.0));
  Values with_nan = random_values(64, 8);
  with_nan[9] = std::nan("");
  const Tensor values = bench_->put_master(with_nan, {8, 8});
  orthogonalise(values, {0, 8, 8}, 1.0f);
  for (const double value : bench_->take(values)) EXPECT_TRUE(std::isnan(value));
}

TEST_P(OrthogonalTest, WrongRowsAndSmallWorkspacesAreErrors) {
  const Tensor values = bench_->put_master(random_values(64, 9), {8, 8});
  EXPECT_THROW(orthogonalise(values, {0, 8, 16}, 1.0f), Error);
  EXPECT_THROW(orthogonalise(values, {4, 8, 8}, 1.0f), Error);
  const Tensor small = bench_->poisoned({OrthogonalOps::workspace_size(8, 8) - 1});
  EXPECT_THROW(device_->get<OrthogonalOps>().orthogonalise(values, {0, 8, 8}, 1.0f, small), Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, OrthogonalTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

/// Neither one rank of eight threads nor eight ranks of one may change a bit.
TEST(Orthogonal, DoesNotDependOnThreads) {
  std::vector<Values> results;
  for (const int threads : {1, 2, 5}) {
    const std::unique_ptr<Device> device = make_device(device_cases().front(), threads);
    Bench bench(*device);
    const Tensor values = bench.put_master(random_values(std::int64_t{150} * 70, 10), {150, 70});
    const Tensor workspace = bench.poisoned({OrthogonalOps::workspace_size(150, 70)});
    device->get<OrthogonalOps>().orthogonalise(values, {0, 150, 150}, 1.0f, workspace);
    results.push_back(bench.take(values));
  }
  EXPECT_EQ(results[1], results[0]);
  EXPECT_EQ(results[2], results[0]);
}

}  // namespace
}  // namespace ddptrain::tests
