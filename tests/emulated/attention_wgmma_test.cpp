#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <string>
#include <vector>

#include "tests/emulated/device.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/attention_wgmma.cuh"

namespace ddptrain::cuda::attention_wgmma {

alignas(1024) char memory[227 * 1024];  // NOLINT: the kernel's shared memory

namespace {

struct Case {
  int batch, sequence, heads, blocks;
  int resident;  // tiles
  bool products_late;
  unsigned seed;
};

std::string describe(const Case& c) {
  return std::to_string(c.batch) + " x " + std::to_string(c.sequence) + " x " + std::to_string(c.heads) + " heads on " +
         std::to_string(c.blocks) + " blocks, " + std::to_string(c.resident) + " resident tiles, products " +
         (c.products_late ? "late" : "at once") + ", seed " + std::to_string(c.seed);
}

/// Random tensors and the gradients in double precision.
class Attention {
 public:
  explicit Attention(const Case& c)
      : c_(c),
        width_(c.heads * kHead),
        qkv(random(3, c.seed)),
        dout(random(1, c.seed + 1)),
        out(size(1)),
        statistics(static_cast<std::size_t>(c.batch * c.heads * c.sequence)),
        dqkv(size(3), __float2bfloat16(NAN)),
        expected(size(3)) {
    for (int sample = 0; sample < c.batch; ++sample) {
      for (int head = 0; head < c.heads; ++head) {
        for (int query = 0; query < c.sequence; ++query) attend(sample, head, query);
      }
    }
  }

  void run() {
    std::vector<float4> partial(static_cast<std::size_t>(c_.blocks) * c_.sequence * kHead / 4, {NAN, NAN, NAN, NAN});
    const std::int64_t rows = std::int64_t{c_.batch} * c_.sequence;
    const Maps maps{emulated::Matrix{qkv.data(), rows, 3 * width_}.map(),
                    emulated::Matrix{out.data(), rows, width_}.map(),
                    emulated::Matrix{dout.data(), rows, width_}.map()};
    const Problem problem{statistics.data(), partial.data(),      dqkv.data(), c_.sequence,
                          c_.heads,          c_.batch * c_.heads, c_.resident, 1.0f / std::sqrt(float{kHead})};
    gridDim.x = c_.blocks;
    for (int block = 0; block < c_.blocks; ++block) {
      blockIdx.x = block;
      std::fill_n(memory, sizeof(memory), '\xFF');
      emulated::Block({kThreads, c_.seed, c_.products_late, memory}).run([&] { backward_kernel(maps, problem); });
    }
  }

  /// Of q, k and v: norm of the difference over the norm.
  double relative_error(int part) const {
    double difference = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      if (static_cast<int>(i) / width_ % 3 != part) continue;
      difference += std::pow(__bfloat162float(dqkv[i]) - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    return std::sqrt(difference / norm);
  }

 private:
  std::size_t size(int parts) const { return static_cast<std::size_t>(c_.batch * c_.sequence * width_ * parts); }
  std::vector<bf16> random(int parts, unsigned seed) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<bf16> values(size(parts));
    for (bf16& value : values) value = __float2bfloat16(normal(generator));
    return values;
  }
  std::size_t at(int sample, int row, int part, int head) const {
    return (static_cast<std::size_t>(sample * c_.sequence + row) * 3 + static_cast<std::size_t>(part)) *
               static_cast<std::size_t>(width_) +
           static_cast<std::size_t>(head * kHead);
  }
  static double dot(const bf16* x, const bf16* y) {
    double sum = 0.0;
    for (int i = 0; i < kHead; ++i) sum += static_cast<double>(__bfloat162float(x[i])) * __bfloat162float(y[i]);
    return sum;
  }
  static void add(double factor, const bf16* x, double* sum) {
    for (int i = 0; i < kHead; ++i) sum[i] += factor * __bfloat162float(x[i]);
  }

  /// Forward and backward of one query.
  void attend(int sample, int head, int query) {
    const double scale = 1.0 / std::sqrt(double{kHead});
    const bf16* q = &qkv[at(sample, query, 0, head)];
    std::vector<double> weights;
    double total = 0.0;
    for (int key = 0; key <= query; ++key) {
      weights.push_back(std::exp(scale * dot(q, &qkv[at(sample, key, 1, head)])));
      total += weights.back();
    }
    statistics[static_cast<std::size_t>((sample * c_.heads + head) * c_.sequence + query)] =
        static_cast<float>(std::log(total));
    double sums[kHead] = {};
    for (int key = 0; key <= query; ++key) {
      weights[static_cast<std::size_t>(key)] /= total;
      add(weights[static_cast<std::size_t>(key)], &qkv[at(sample, key, 2, head)], sums);
    }
    const std::size_t row = static_cast<std::size_t>((sample * c_.sequence + query) * width_ + head * kHead);
    for (std::size_t i = 0; i < kHead; ++i) out[row + i] = __float2bfloat16(static_cast<float>(sums[i]));
    const double delta = dot(&out[row], &dout[row]);
    for (int key = 0; key <= query; ++key) {
      const double weight = weights[static_cast<std::size_t>(key)];
      const double dscore = scale * weight * (dot(&dout[row], &qkv[at(sample, key, 2, head)]) - delta);
      add(dscore, &qkv[at(sample, key, 1, head)], &expected[at(sample, query, 0, head)]);
      add(dscore, q, &expected[at(sample, key, 1, head)]);
      add(weight, &dout[row], &expected[at(sample, key, 2, head)]);
    }
  }

  Case c_;
  int width_;

 public:
  std::vector<bf16> qkv, dout, out;
  std::vector<float> statistics;
  std::vector<bf16> dqkv;
  std::vector<double> expected;
};

TEST(EmulatedAttentionTest, BackwardByWarpgroupsEqualsDoublePrecision) {
  std::vector<Case> cases;
  for (const bool late : {false, true}) {
    cases.push_back({1, 128, 3, 1, 0, late, 1});
    cases.push_back({1, 256, 3, 2, 0, late, 2});
    cases.push_back({1, 256, 3, 2, 4, late, 3});
    cases.push_back({2, 512, 2, 3, 3, late, 4});
  }
  for (const Case& c : cases) {
    Attention attention(c);
    ASSERT_NO_THROW(attention.run()) << describe(c);
    for (int part = 0; part < 3; ++part) {
      EXPECT_LT(attention.relative_error(part), 4e-3) << "gradient of "
                                                      << "qkv"[part] << ", " << describe(c);
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda::attention_wgmma
