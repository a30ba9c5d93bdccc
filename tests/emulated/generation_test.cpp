#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <numbers>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "tests/emulated/device.h"
// The kernels, after what stands for CUDA.
#include "runtime/ops/cuda/attention/cached_attention.cuh"
#include "runtime/ops/cuda/gemm/few_rows.cuh"

// Kernels that continue texts.

namespace ddptrain::cuda {
namespace {

/// `dynamic_bytes`: of shared memory. `predecessor`: what the kernel before writes, after the first block has started.
template <class Work>
void run(int threads, int blocks, int block_rows, const Work& kernel, std::size_t dynamic_bytes = 0,
         const std::function<void()>& predecessor = nullptr) {
  alignas(1024) static char shared[1 << 18];
  constexpr std::size_t kGuard = 1024;  // bytes after the memory, which the kernel leaves alone
  ASSERT_LE(dynamic_bytes + kGuard, sizeof(shared));
  gridDim = {blocks, block_rows};
  for (int x = 0; x < blocks; ++x) {
    for (int y = 0; y < block_rows; ++y) {
      blockIdx = {x, y};
      std::memset(shared, 0xFF, dynamic_bytes + kGuard);  // NaN
      const bool is_first = x == 0 && y == 0, copies_late = x % 2 == 0;
      const auto seed = static_cast<unsigned>(7 + x);
      emulated::Block({threads, seed, copies_late, shared, is_first ? predecessor : nullptr}).run(kernel);
      const char* const end = shared + dynamic_bytes;
      ASSERT_TRUE(std::all_of(end, end + kGuard, [](char byte) { return byte == '\xFF'; }))
          << "writes beyond its memory";
    }
  }
}

std::vector<float> random(std::size_t count, unsigned seed, float limit) {
  std::mt19937 random(seed);
  std::uniform_real_distribution<float> values(-limit, limit);
  std::vector<float> result(count);
  for (float& value : result) value = values(random);
  return result;
}

struct CachedCase {
  std::uint32_t heads, key_heads, head_size, rows, capacity, first, stretch;
  bool turns = false;  ///< Rows are group by group, and get rotary positions.
};

/// Two texts with their cache, in f32.
class CachedText {
 public:
  explicit CachedText(const CachedCase& c)
      : c_(c),
        width_(c.heads * c.head_size),
        cache_width_(c.key_heads * c.head_size),
        columns_(width_ + 2 * cache_width_),
        qkv_(random(kTexts * c.rows * columns_, 1, 2.0f)),
        keys_(random(kTexts * c.capacity * cache_width_, 2, 2.0f)),
        values_(random(keys_.size(), 3, 1.0f)),
        out_(kTexts * c.rows * width_, NAN) {
    for (std::size_t text = 0; text < kTexts; ++text) {  // nothing reads these
      const auto from = static_cast<std::ptrdiff_t>((text * c.capacity + c.first) * cache_width_);
      const auto to = static_cast<std::ptrdiff_t>((text + 1) * c.capacity * cache_width_);
      for (std::vector<float>* cache : {&keys_, &values_}) std::fill(cache->begin() + from, cache->begin() + to, NAN);
    }
    if (c.turns) turn_rows();
  }

  template <int E, bool kTurns = false>
  void attend() {
    namespace kernels = cached_attention;
    const std::int64_t first = c_.first;
    const kernels::Cached a{.sequence = c_.rows,
                            .capacity = c_.capacity,
                            .heads = c_.heads,
                            .key_heads = c_.key_heads,
                            .head_size = c_.head_size,
                            .stretch = c_.stretch,
                            .stretches = (c_.capacity + c_.stretch - 1) / c_.stretch,
                            .scale = std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(c_.head_size)),
                            .first_position = &first,
                            .frequencies = frequencies_.data()};
    const auto rows = static_cast<int>(kTexts * c_.rows), stretches = static_cast<int>(a.stretches);
    const int queries = kernels::queries_of(E, kTurns), tiles = (static_cast<int>(a.queries()) + queries - 1) / queries;
    const std::size_t partials_size = static_cast<std::size_t>(rows) * c_.heads * a.stretches * a.partial_size();
    std::vector<float> partials(partials_size, NAN);
    std::vector<std::uint32_t> arrived(static_cast<std::size_t>(rows) * c_.heads, 0);
    run(kernels::kThreads, rows * stretches, static_cast<int>(c_.key_heads) * tiles, [&] {
      kernels::attend_kernel<float, E, kTurns>(a, kTurns ? by_group_.data() : qkv_.data(), keys_.data(), values_.data(),
                                               out_.data(), partials.data(), arrived.data());
    });
    for (const std::uint32_t count : arrived) EXPECT_EQ(count, 0u);
  }

  void expect_attended() const {
    double worst = 0.0;
    for (std::size_t row = 0; row < kTexts * c_.rows; ++row) {
      for (std::size_t head = 0; head < c_.heads; ++head) {
        const std::vector<double> expected = expected_of(row, head);
        for (std::size_t i = 0; i < c_.head_size; ++i) {
          const double apart = std::abs(expected[i] - out_[row * width_ + head * c_.head_size + i]);
          worst = apart <= worst ? worst : apart;  // NaN is the worst
        }
      }
    }
    EXPECT_LE(worst, 4e-6);
  }
  void expect_kept() const {
    for (std::size_t row = 0; row < kTexts * c_.rows; ++row) {
      const std::size_t to = (row / c_.rows * c_.capacity + c_.first + row % c_.rows) * cache_width_;
      for (std::size_t i = 0; i < cache_width_; ++i) {
        ASSERT_NEAR(keys_[to + i], qkv_[row * columns_ + width_ + i], c_.turns ? 1e-6 : 0.0);
        ASSERT_EQ(values_[to + i], qkv_[row * columns_ + width_ + cache_width_ + i]);
      }
    }
  }

 private:
  static constexpr std::size_t kTexts = 2;

  /// Makes qkv_ from rows that are group by group.
  void turn_rows() {
    by_group_ = qkv_;
    const std::size_t half = c_.head_size / 2, queries = c_.heads / c_.key_heads;
    for (std::size_t i = 0; i < half; ++i) frequencies_.push_back(1.0f / static_cast<float>(i + 1));
    for (std::size_t at = 0; at < qkv_.size(); at += c_.head_size) {
      const std::size_t row = at / columns_, group = at % columns_ / c_.head_size / (queries + 2);
      const std::size_t in_group = at % columns_ / c_.head_size % (queries + 2);
      const std::size_t kinds[] = {group * queries + in_group, c_.heads + group, c_.heads + c_.key_heads + group};
      const std::size_t kind = in_group < queries ? 0 : in_group - queries + 1;
      const float* const x = &by_group_[at];
      float* const y = &qkv_[row * columns_ + kinds[kind] * c_.head_size];
      for (std::size_t i = 0; i < c_.head_size; ++i) {
        const float angle = static_cast<float>(c_.first) * frequencies_[i % half];
        const double partner = i < half ? -x[i + half] : x[i - half];
        y[i] =
            kind == 2 ? x[i] : static_cast<float>(x[i] * std::cos(double{angle}) + partner * std::sin(double{angle}));
      }
    }
  }

  /// From the cache after the pass.
  std::vector<double> expected_of(std::size_t row, std::size_t head) const {
    const std::size_t positions = c_.first + row % c_.rows + 1;
    const std::size_t cache =
        row / c_.rows * c_.capacity * cache_width_ + head / (c_.heads / c_.key_heads) * c_.head_size;
    std::vector<double> sum(c_.head_size, 0.0);
    double weights = 0.0;
    for (std::size_t p = 0; p < positions; ++p) {
      double score = 0.0;
      for (std::size_t i = 0; i < c_.head_size; ++i) {
        score +=
            static_cast<double>(qkv_[row * columns_ + head * c_.head_size + i]) * keys_[cache + p * cache_width_ + i];
      }
      const double weight = std::exp(score / std::sqrt(static_cast<double>(c_.head_size)));
      weights += weight;
      for (std::size_t i = 0; i < c_.head_size; ++i) sum[i] += weight * values_[cache + p * cache_width_ + i];
    }
    for (double& value : sum) value /= weights;
    return sum;
  }

  CachedCase c_;
  std::size_t width_, cache_width_, columns_;
  std::vector<float> qkv_, keys_, values_, out_, by_group_, frequencies_;
};

TEST(EmulatedGenerationTest, AttentionToACacheEqualsDoublePrecision) {
  for (const CachedCase& c : std::vector<CachedCase>{{6, 2, 8, 1, 20, 0, 64},
                                                     {6, 2, 8, 3, 20, 17, 64},
                                                     {3, 3, 5, 1, 64, 63, 64},
                                                     {14, 2, 64, 1, 65, 64, 64},
                                                     {14, 2, 64, 2, 200, 130, 64},
                                                     {12, 2, 128, 1, 300, 299, 64},
                                                     {14, 2, 128, 3, 60, 31, 60},
                                                     {20, 1, 64, 1, 150, 100, 64},
                                                     {4, 2, 65, 1, 200, 127, 64},
                                                     {2, 1, 256, 1, 100, 99, 80},
                                                     {2, 1, 200, 3, 100, 60, 64}}) {
    SCOPED_TRACE(std::to_string(c.heads) + " heads of " + std::to_string(c.head_size) + ", row " +
                 std::to_string(c.first));
    CachedText text(c);
    ASSERT_NO_THROW(c.head_size <= 32    ? text.attend<1>()
                    : c.head_size <= 64  ? text.attend<2>()
                    : c.head_size <= 128 ? text.attend<4>()
                                         : text.attend<8>());
    text.expect_kept();
    text.expect_attended();
  }
}

TEST(EmulatedGenerationTest, AttentionTurnsRowsAsItReadsThem) {
  for (const CachedCase& c : std::vector<CachedCase>{{6, 2, 64, 1, 65, 64, 32, true},
                                                     {6, 2, 64, 1, 20, 0, 32, true},
                                                     {12, 2, 128, 1, 150, 149, 32, true},
                                                     {20, 2, 128, 1, 40, 31, 40, true}}) {
    SCOPED_TRACE(std::to_string(c.heads) + " heads of " + std::to_string(c.head_size) + ", row " +
                 std::to_string(c.first));
    CachedText text(c);
    ASSERT_NO_THROW((c.head_size == 64 ? text.attend<2, true>() : text.attend<4, true>()));
    text.expect_kept();
    text.expect_attended();
  }
}

struct RowsCase {
  std::uint32_t rows, in, out;
  std::uint32_t blocks;
  /// The halves of a row have equal products with a weight, with opposite signs, and there is no bias. So the layer
  /// gives what rounding leaves, which depends on the order of the terms.
  bool cancels = false;
};

std::vector<__nv_bfloat16> rounded(std::size_t count, unsigned seed) {
  std::vector<__nv_bfloat16> result;
  for (const float value : random(count, seed, 1.0f)) result.push_back(__float2bfloat16(value));
  return result;
}
double value(const std::vector<__nv_bfloat16>& values, std::size_t i) {
  return static_cast<double>(__bfloat162float(values[i]));
}

/// A linear layer of few rows, with a SwiGLU if it is `gated`.
class FewRowsLayer {
 public:
  FewRowsLayer(const RowsCase& c, bool gated, bool normed = false)
      : x(rounded(c.rows * c.in, 1)),
        weight(rounded(c.out * c.in, 2)),
        bias(rounded(c.out, 3)),
        product(c.rows * c.out, __float2bfloat16(NAN)),
        y(c.rows * c.out / (gated ? 2 : 1), __float2bfloat16(NAN)),
        branch(rounded(c.in, 4)),
        norm_weight(rounded(c.in, 5)),
        sum(c.in, __float2bfloat16(NAN)),
        c_(c),
        columns_(static_cast<std::uint32_t>(y.size()) / c.rows) {
    if (c.cancels) cancel();
    few_rows::FewRows a{.rows = c.rows,
                        .in = c.in,
                        .out = c.out,
                        .columns = columns_,
                        .gated = gated ? 1u : 0u,
                        .x = x.data(),
                        .weight = weight.data(),
                        .bias = c.cancels ? nullptr : bias.data(),
                        .product = product.data(),
                        .y = y.data(),
                        .norm = {.branch = normed ? branch.data() : nullptr,
                                 .weight = norm_weight.data(),
                                 .epsilon = kEpsilon,
                                 .sum = sum.data()}};
    const std::size_t bytes = few_rows::SharedMemory::bytes(a, (a.columns + c.blocks - 1) / c.blocks << a.gated);
    const std::vector<__nv_bfloat16> later_x = x, later_branch = branch;
    std::ranges::fill(x, __float2bfloat16(NAN));
    std::ranges::fill(branch, __float2bfloat16(NAN));
    const auto write_x = [&] {
      for (const auto* written : {&product, &y, &sum}) EXPECT_TRUE(std::isnan(value(*written, 0)));
      std::ranges::copy(later_x, x.begin());
      std::ranges::copy(later_branch, branch.begin());
    };
    run(
        static_cast<int>(few_rows::kThreads), static_cast<int>(c.blocks), 1, [&] { few_rows::few_rows_kernel(a); },
        bytes, write_x);
    if (normed) normalise_x();
  }

  void expect_product() const {
    for (std::size_t row = 0; row < c_.rows; ++row) {
      for (std::size_t column = 0; column < c_.out; ++column) {
        double total = value(bias, column);
        for (std::size_t i = 0; i < c_.in; ++i) total += value(x, row * c_.in + i) * value(weight, column * c_.in + i);
        ASSERT_NEAR(value(product, row * c_.out + column), total, 4e-3 * (1.0 + std::abs(total)));
      }
    }
  }
  void expect_gated() const {
    for (std::size_t row = 0; row < c_.rows; ++row) {
      for (std::size_t column = 0; column < columns_; ++column) {
        const double gate = value(product, row * c_.out + column),
                     up = value(product, row * c_.out + columns_ + column);
        const double expected = gate / (1.0 + std::exp(-gate)) * up;
        ASSERT_NEAR(value(y, row * columns_ + column), expected, 4e-3 * (1e-3 + std::abs(expected)));
      }
    }
  }

  /// That the kernel has written what normalise_x() has found.
  void expect_sum() const {
    for (std::size_t i = 0; i < c_.in; ++i) ASSERT_EQ(value(sum, i), value(expected_sum_, i));
  }

  std::vector<__nv_bfloat16> x, weight, bias, product, y, branch, norm_weight, sum;

 private:
  static constexpr float kEpsilon = 1e-3f;

  void cancel() {
    const std::size_t half = c_.in / 2;
    std::ranges::fill(bias, __float2bfloat16(0.0f));
    for (std::size_t i = 0; i < x.size(); ++i) {
      if (i % c_.in >= half) x[i] = __float2bfloat16(-__bfloat162float(x[i - half]));
    }
    for (std::size_t i = 0; i < weight.size(); ++i) {
      if (i % c_.in >= half) weight[i] = weight[i - half];
    }
  }

  /// x becomes the RMS norm of x + branch.
  void normalise_x() {
    double squares = 0.0;
    for (std::size_t i = 0; i < c_.in; ++i) {
      expected_sum_.push_back(__float2bfloat16(static_cast<float>(value(x, i) + value(branch, i))));
      squares += value(expected_sum_, i) * value(expected_sum_, i);
    }
    const double inverse = 1.0 / std::sqrt(squares / c_.in + kEpsilon);
    for (std::size_t i = 0; i < c_.in; ++i) {
      x[i] = __float2bfloat16(static_cast<float>(value(expected_sum_, i) * inverse * value(norm_weight, i)));
    }
  }

  RowsCase c_;
  std::uint32_t columns_;
  std::vector<__nv_bfloat16> expected_sum_;
};

const std::vector<RowsCase> kRowsCases = {
    {1, 8, 2, 1},     {1, 24, 40, 7},  {1, 1536, 58, 3}, {1, 1536, 58, 29}, {2, 1048, 6, 1},  {3, 2048, 6, 3},
    {4, 256, 10, 2},  {5, 1032, 6, 2}, {8, 264, 34, 4},  {1, 8960, 22, 4},  {1, 3000, 46, 2}, {1, 18944, 6, 2},
    {1, 768, 200, 4}, {7, 520, 70, 1}, {1, 64, 6, 8},    {3, 2040, 4, 5},   {2, 40, 150, 1},  {1, 200, 100, 1}};

TEST(EmulatedGenerationTest, ProductsOfFewRowsEqualDoublePrecision) {
  for (const RowsCase& c : kRowsCases) {
    SCOPED_TRACE(std::to_string(c.rows) + " x " + std::to_string(c.in) + " x " + std::to_string(c.out));
    FewRowsLayer(c, false).expect_product();
    const FewRowsLayer gated(c, true);
    gated.expect_product();
    gated.expect_gated();
  }
}

/// The norm's sum and what it gives are rounded to bf16 as if they were stored.
TEST(EmulatedGenerationTest, ProductsOfANormOfOneRowEqualDoublePrecision) {
  for (const RowsCase& c : kRowsCases) {
    if (c.rows > 1) continue;
    SCOPED_TRACE(std::to_string(c.in) + " x " + std::to_string(c.out));
    for (const bool gated : {false, true}) {
      const FewRowsLayer layer(c, gated, true);
      layer.expect_sum();
      layer.expect_product();
      if (gated) layer.expect_gated();
    }
  }
}

/// What a row gives does not depend on how many others there are, nor on the block that computes it.
TEST(EmulatedGenerationTest, ProductsOfARowAreTheSameBitsInEveryBatch) {
  const RowsCase one{1, 1152, 70, 1, true};
  const FewRowsLayer alone(one, false);
  const std::vector<std::pair<std::uint32_t, std::uint32_t>> sizes = {{2, 2}, {3, 5}, {7, 1}, {1, 35}};
  for (const auto& [rows, blocks] : sizes) {
    for (const bool gated : {false, true}) {
      SCOPED_TRACE(std::to_string(rows) + " rows, " + std::to_string(blocks) + " blocks");
      const FewRowsLayer batch({rows, one.in, one.out, blocks, true}, gated);
      ASSERT_EQ(value(batch.x, 0), value(alone.x, 0));
      for (std::size_t i = 0; i < one.out; ++i) ASSERT_EQ(value(batch.product, i), value(alone.product, i));
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda
