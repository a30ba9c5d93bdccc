#pragma once

#include <cuda_bf16.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace ddptrain::emulated {

struct AttentionSizes {
  int batch, sequence, heads, key_heads, head_size;
  unsigned seed;
  float queries = 1.0f;  ///< Their standard deviation, and about that of the scores.
};

/// Random tensors and the gradients in double precision.
class AttentionReference {
 public:
  explicit AttentionReference(const AttentionSizes& c)
      : c_(c),
        width_(c.heads * c.head_size),
        columns_(width_ + 2 * c.key_heads * c.head_size),
        qkv(random(columns_, c.seed, c.queries)),
        d_output(random(width_, c.seed + 1, 1.0f)),
        out(size(width_)),
        statistics(static_cast<std::size_t>(c.batch * c.heads * c.sequence)),
        dqkv(size(columns_), __float2bfloat16(NAN)),
        expected(size(columns_)) {
    for (int sample = 0; sample < c.batch; ++sample) {
      for (int head = 0; head < c.heads; ++head) {
        for (int query = 0; query < c.sequence; ++query) attend(sample, head, query);
      }
    }
  }

  /// d_output * out, summed over each head.
  std::vector<float> deltas() const {
    std::vector<float> sums(statistics.size());
    for (int sample = 0; sample < c_.batch; ++sample) {
      for (int head = 0; head < c_.heads; ++head) {
        for (int query = 0; query < c_.sequence; ++query) {
          const std::size_t row = row_of(sample, query, head);
          sums[statistic_of(sample, head, query)] = static_cast<float>(dot(&out[row], &d_output[row]));
        }
      }
    }
    return sums;
  }
  /// From the part `first` on of q, k and v.
  void expect_gradients(const std::string& what, int first = 0) const {
    for (int part = first; part < 3; ++part) {
      EXPECT_LT(relative_error(part), 4e-3) << "gradient of " << std::string("qkv").substr(part, 1) << ", " << what;
    }
  }
  std::vector<std::uint16_t> bits_of_gradients() const {
    std::vector<std::uint16_t> bits;
    for (const __nv_bfloat16& value : dqkv) bits.push_back(__bfloat16_as_ushort(value));
    return bits;
  }

 private:
  /// Norm of the difference over the norm.
  double relative_error(int part) const {
    double difference = 0.0, norm = 0.0;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      const int column = static_cast<int>(i) % columns_;
      if ((column < first_of(1) ? 0 : column < first_of(2) ? 1 : 2) != part) continue;
      difference += std::pow(__bfloat162float(dqkv[i]) - expected[i], 2);
      norm += expected[i] * expected[i];
    }
    return std::sqrt(difference / norm);
  }
  std::size_t size(int columns) const { return static_cast<std::size_t>(c_.batch * c_.sequence * columns); }
  /// Rows, whose first elements, as many as those of all queries, get a factor.
  std::vector<__nv_bfloat16> random(int columns, unsigned seed, float factor) const {
    std::mt19937 generator(seed);
    std::normal_distribution<float> normal;
    std::vector<__nv_bfloat16> values(size(columns));
    for (std::size_t i = 0; i < values.size(); ++i) {
      const bool is_first = static_cast<int>(i % static_cast<std::size_t>(columns)) < width_;
      values[i] = __float2bfloat16(normal(generator) * (is_first ? factor : 1.0f));
    }
    return values;
  }
  /// First column of q, k or v.
  int first_of(int part) const { return part == 0 ? 0 : width_ + (part - 1) * c_.key_heads * c_.head_size; }
  /// Of a head of queries, or of the key or value that it has.
  std::size_t at(int sample, int row, int part, int head) const {
    const int in_part = part == 0 ? head : head / (c_.heads / c_.key_heads);
    return static_cast<std::size_t>((sample * c_.sequence + row) * columns_ + first_of(part) + in_part * c_.head_size);
  }
  std::size_t row_of(int sample, int row, int head) const {
    return static_cast<std::size_t>((sample * c_.sequence + row) * width_ + head * c_.head_size);
  }
  std::size_t statistic_of(int sample, int head, int row) const {
    return static_cast<std::size_t>((sample * c_.heads + head) * c_.sequence + row);
  }
  double dot(const __nv_bfloat16* x, const __nv_bfloat16* y) const {
    double sum = 0.0;
    for (int i = 0; i < c_.head_size; ++i) sum += static_cast<double>(__bfloat162float(x[i])) * __bfloat162float(y[i]);
    return sum;
  }
  void add(double factor, const __nv_bfloat16* x, double* sum) const {
    for (int i = 0; i < c_.head_size; ++i) sum[i] += factor * __bfloat162float(x[i]);
  }

  /// Forward and backward of one query.
  void attend(int sample, int head, int query) {
    const double scale = 1.0 / std::sqrt(static_cast<double>(c_.head_size));
    const __nv_bfloat16* q = &qkv[at(sample, query, 0, head)];
    std::vector<double> weights;
    for (int key = 0; key <= query; ++key) weights.push_back(scale * dot(q, &qkv[at(sample, key, 1, head)]));
    const double largest = *std::max_element(weights.begin(), weights.end());
    double total = 0.0;
    for (double& weight : weights) {
      weight = std::exp(weight - largest);
      total += weight;
    }
    statistics[statistic_of(sample, head, query)] = static_cast<float>(largest + std::log(total));
    std::vector<double> sums(static_cast<std::size_t>(c_.head_size));
    for (int key = 0; key <= query; ++key) {
      weights[static_cast<std::size_t>(key)] /= total;
      add(weights[static_cast<std::size_t>(key)], &qkv[at(sample, key, 2, head)], sums.data());
    }
    const std::size_t row = row_of(sample, query, head);
    for (std::size_t i = 0; i < sums.size(); ++i) out[row + i] = __float2bfloat16(static_cast<float>(sums[i]));
    const double delta = dot(&out[row], &d_output[row]);
    for (int key = 0; key <= query; ++key) {
      const double weight = weights[static_cast<std::size_t>(key)];
      const double dscore = scale * weight * (dot(&d_output[row], &qkv[at(sample, key, 2, head)]) - delta);
      add(dscore, &qkv[at(sample, key, 1, head)], &expected[at(sample, query, 0, head)]);
      add(dscore, q, &expected[at(sample, key, 1, head)]);
      add(weight, &d_output[row], &expected[at(sample, key, 2, head)]);
    }
  }

  AttentionSizes c_;
  int width_, columns_;

 public:
  std::vector<__nv_bfloat16> qkv, d_output, out;
  std::vector<float> statistics;
  std::vector<__nv_bfloat16> dqkv;
  std::vector<double> expected;
};

}  // namespace ddptrain::emulated
