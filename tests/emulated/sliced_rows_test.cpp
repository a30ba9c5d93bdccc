#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/loss/sliced_rows.cuh"

namespace ddptrain::cuda::sliced_rows {
namespace {

constexpr float kScale = 0.125f, kInfinity = std::numeric_limits<float>::infinity();
constexpr std::uint32_t kElsewhere = 0xFFFFFFFFu;

struct Targets {
  const std::vector<std::uint32_t>* targets;
  std::uint32_t first, counted;  // of the slice

  std::uint32_t target(std::uint32_t row) const {
    const std::uint32_t target = (*targets)[row];
    return target >= first && target < first + counted ? target - first : kElsewhere;
  }
};

struct Case {
  std::uint32_t rows, vocabulary, slices, columns;  // columns of a slice
};

/// Logits of the whole vocabulary: eighths, so that some of the largest are equal, and targets are among them.
struct Logits {
  Case shape;
  std::vector<float> values;
  std::vector<std::uint32_t> targets;

  explicit Logits(const Case& c) : shape(c), values(std::size_t{c.rows} * c.vocabulary), targets(c.rows) {
    std::mt19937 random(c.vocabulary);
    for (float& value : values) value = (static_cast<float>(random() % 49) - 24) / 8;
    for (std::uint32_t row = 0; row < c.rows; ++row) {
      targets[row] = static_cast<std::uint32_t>(random() % c.vocabulary);
      if (row % 3 > 0) at(row, targets[row]) = row % 3 == 1 ? 3.5f : 3.0f;
      if (row % 3 > 0) continue;
      at(row, 9) = at(row, 11) = 5.0f;  // in one pack
      targets[row] = row == 0 ? 11 : 9;
    }
  }
  float& at(std::uint32_t row, std::uint32_t column) { return values[std::size_t{row} * shape.vocabulary + column]; }
  std::uint32_t counted(std::uint32_t slice) const {
    return std::min(shape.columns, shape.vocabulary - slice * shape.columns);
  }
  std::vector<__nv_bfloat16> of_slice(std::uint32_t slice) {
    std::vector<__nv_bfloat16> part(std::size_t{shape.rows} * shape.columns, __float2bfloat16_rn(100.0f));
    for (std::uint32_t row = 0; row < shape.rows; ++row) {
      for (std::uint32_t c = 0; c < counted(slice); ++c) {
        part[std::size_t{row} * shape.columns + c] = __float2bfloat16_rn(at(row, slice * shape.columns + c));
      }
    }
    return part;
  }
};

struct Outcome {
  std::vector<float> gradient;  // of the whole vocabulary
  double loss = 0.0;
  std::uint32_t correct = 0;
};

template <class Kernel>
void run_blocks(std::uint32_t blocks, Kernel&& kernel) {
  gridDim.x = static_cast<int>(blocks);
  for (std::uint32_t block = 0; block < blocks; ++block) {
    blockIdx.x = static_cast<int>(block);
    emulated::Block({32 * kWarps, block, block % 2 == 0, nullptr}).run(kernel);
  }
}

/// The gradient takes the place of the logits.
template <int V>
Outcome run(Logits& logits, std::uint32_t blocks) {
  const Case& c = logits.shape;
  std::vector<std::vector<__nv_bfloat16>> slices;
  std::vector<float> statistics(std::size_t{c.slices} * c.rows * LossOps::kSoftmaxStatistics, NAN);
  const auto rows_of = [&](std::uint32_t slice) {
    return Rows<__nv_bfloat16, Targets>{slices[slice].data(), c.rows, c.columns, logits.counted(slice),
                                        Targets{&logits.targets, slice * c.columns, logits.counted(slice)}};
  };
  for (std::uint32_t slice = 0; slice < c.slices; ++slice) {
    slices.push_back(logits.of_slice(slice));
    const auto rows = rows_of(slice);
    float* const out = statistics.data() + std::size_t{slice} * c.rows * LossOps::kSoftmaxStatistics;
    run_blocks(blocks, [&] { statistics_kernel<__nv_bfloat16, V>(rows, out); });
  }
  Outcome outcome{std::vector<float>(logits.values.size())};
  for (std::uint32_t slice = 0; slice < c.slices; ++slice) {
    std::vector<MetricPartial> metrics(std::size_t{blocks} * kWarps);
    const auto rows = rows_of(slice);
    run_blocks(blocks, [&] {
      combined_kernel<__nv_bfloat16, V>(rows, statistics.data(), c.slices, kScale, slices[slice].data(),
                                        metrics.data());
    });
    outcome.loss = 0.0;
    outcome.correct = 0;
    for (const MetricPartial& partial : metrics) {
      outcome.loss += partial.loss;
      outcome.correct += partial.correct;
    }
    for (std::uint32_t row = 0; row < c.rows; ++row) {
      const __nv_bfloat16* const of_row = slices[slice].data() + std::size_t{row} * c.columns;
      for (std::uint32_t k = 0; k < c.columns; ++k) {
        const float value = __bfloat162float(of_row[k]);
        if (k >= logits.counted(slice)) EXPECT_EQ(value, 0.0f);
        if (k < logits.counted(slice)) {
          outcome.gradient[std::size_t{row} * c.vocabulary + slice * c.columns + k] = value;
        }
      }
    }
  }
  return outcome;
}

void expect_double_precision(Logits& logits, const Outcome& outcome) {
  const Case& c = logits.shape;
  double loss = 0.0, worst = 0.0;
  std::uint32_t correct = 0;
  for (std::uint32_t row = 0; row < c.rows; ++row) {
    std::uint32_t best = 0;
    for (std::uint32_t k = 0; k < c.vocabulary; ++k) best = logits.at(row, k) > logits.at(row, best) ? k : best;
    const double largest = logits.at(row, best);
    double total = 0.0;
    for (std::uint32_t k = 0; k < c.vocabulary; ++k) total += std::exp(logits.at(row, k) - largest);
    const std::uint32_t target = logits.targets[row];
    loss += std::log(total) + largest - logits.at(row, target);
    correct += best == target ? 1 : 0;
    for (std::uint32_t k = 0; k < c.vocabulary; ++k) {
      const double expected = kScale * (std::exp(logits.at(row, k) - largest) / total - (k == target ? 1.0 : 0.0));
      const double apart = std::abs(outcome.gradient[std::size_t{row} * c.vocabulary + k] - expected);
      const double relative = apart / (std::abs(expected) + 1e-12);
      worst = relative <= worst ? worst : relative;
    }
  }
  EXPECT_LE(worst, 0.005);
  EXPECT_NEAR(outcome.loss / c.rows, loss / c.rows, 1e-5);
  EXPECT_EQ(outcome.correct, correct);
}

TEST(EmulatedSlicedRowsTest, LossAndGradientEqualDoublePrecision) {
  for (const Case& c : {Case{19, 3000, 2, 1504}, Case{8, 2000, 3, 800}, Case{5, 700, 2, 352}, Case{9, 60, 4, 16}}) {
    SCOPED_TRACE(std::to_string(c.vocabulary));
    Logits logits(c);
    expect_double_precision(logits, run<8>(logits, 2));
    expect_double_precision(logits, run<1>(logits, 1));
  }
  Logits odd({7, 49, 3, 17});
  expect_double_precision(odd, run<1>(odd, 1));
}

TEST(EmulatedSlicedRowsTest, LogitsThatAreNotFinite) {
  Logits logits({4, 600, 2, 304});
  logits.at(0, 5) = NAN;
  logits.at(1, 599) = kInfinity;
  for (std::uint32_t c = 0; c < 8; ++c) logits.at(2, c) = -kInfinity;  // a whole pack of the first lane
  logits.targets[2] = 100;
  const Outcome outcome = run<8>(logits, 1);
  const auto gradient = [&](std::uint32_t row, std::uint32_t c) { return outcome.gradient[row * 600 + c]; };
  for (std::uint32_t c = 0; c < 600; ++c) {
    EXPECT_TRUE(std::isnan(gradient(0, c)));
    EXPECT_TRUE(std::isnan(gradient(1, c)));
    EXPECT_TRUE(std::isfinite(gradient(2, c)) && std::isfinite(gradient(3, c)));
  }
  EXPECT_EQ(gradient(2, 3), 0.0f);
}

}  // namespace
}  // namespace ddptrain::cuda::sliced_rows
