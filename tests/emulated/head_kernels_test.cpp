#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "tests/emulated/device.h"
// The kernel, after what stands for CUDA.
#include "runtime/ops/cuda/attention/heads/head_kernels.cuh"

namespace ddptrain::cuda::head_kernels {

alignas(1024) char memory[64 * 1024];  // NOLINT: the kernel's shared memory

namespace {

constexpr int kBatch = 3, kSequence = 2;
constexpr int kRows = kBatch * kSequence;
constexpr std::int64_t kFirstPosition = 5;

template <class T, int V>
void run(const Heads& heads, const Rotation& rotation, bool copies_late, std::vector<T>& qkv) {
  for (int position = 0; position < kSequence; ++position) {
    for (int part = 0; part * rotation.samples < kBatch; ++part) {
      blockIdx = {position, part};
      std::fill_n(memory, sizeof(memory), '\xFF');
      const unsigned seed = static_cast<unsigned>(part * kSequence + position);
      emulated::Block({kThreads, seed, copies_late, memory}).run([&] {
        rotate_kernel<T, V>(qkv.data(), heads, rotation);
      });
    }
  }
}

/// Group by group to kind by kind, one element after the other.
std::vector<double> rotated(const Heads& heads, const std::vector<float>& frequencies,
                            const std::vector<double>& from) {
  const int size = heads.head_size, half = size / 2, queries = heads.queries();
  std::vector<double> to(from.size());
  for (int row = 0; row < kRows; ++row) {
    for (int number = 0; number < heads.all(); ++number) {
      const int group = number / (queries + 2), in_group = number % (queries + 2);
      const int kinds[] = {group * queries + in_group, heads.heads + group, heads.heads + heads.key_heads + group};
      const int kind = in_group < queries ? 0 : in_group - queries + 1;
      const double* const x = &from[static_cast<std::size_t>(row * heads.columns() + number * size)];
      double* const y = &to[static_cast<std::size_t>(row * heads.columns() + kinds[kind] * size)];
      for (int i = 0; i < size; ++i) {
        const bool turns = kind < 2 && !frequencies.empty();
        const double angle = turns ? (kFirstPosition + row % kSequence) *
                                         static_cast<double>(frequencies[static_cast<std::size_t>(i % half)])
                                   : 0.0;
        const double partner = !turns ? 0.0 : i < half ? -x[i + half] : x[i - half];
        y[i] = x[i] * std::cos(angle) + partner * std::sin(angle);
      }
    }
  }
  return to;
}

template <class T, int V>
void check(const Heads& heads, bool turns, bool copies_late, int samples) {
  std::vector<float> frequencies;
  for (int i = 0; turns && i < heads.head_size / 2; ++i) frequencies.push_back(1.0f / static_cast<float>(i + 1));
  Rotation rotation{turns ? frequencies.data() : nullptr, &kFirstPosition, kBatch, kSequence, samples, true};
  std::vector<T> qkv;
  std::vector<double> before;
  for (int i = 0; i < kRows * heads.columns(); ++i) {
    qkv.push_back(from_float<T>(std::sin(static_cast<float>(3 * i))));
    before.push_back(to_float(qkv.back()));
  }
  const double tolerance = sizeof(T) == 2 ? 0.02 : 1e-5;
  run<T, V>(heads, rotation, copies_late, qkv);
  const std::vector<double> expected = rotated(heads, frequencies, before);
  for (std::size_t i = 0; i < qkv.size(); ++i) ASSERT_NEAR(to_float(qkv[i]), expected[i], tolerance) << i;
  rotation.forward = false;
  run<T, V>(heads, rotation, copies_late, qkv);
  for (std::size_t i = 0; i < qkv.size(); ++i) ASSERT_NEAR(to_float(qkv[i]), before[i], tolerance) << i;
}

TEST(EmulatedHeadKernelsTest, RotationOrdersAndTurnsHeads) {
  for (const bool late : {false, true}) {
    for (const int samples : {1, 2, 4}) {
      for (const bool turns : {false, true}) {
        check<__nv_bfloat16, 8>({14, 2, 64}, turns, late, samples);
        check<__nv_bfloat16, 8>({4, 4, 16}, turns, late, samples);
        check<float, 4>({6, 3, 8}, turns, late, samples);
        check<__nv_bfloat16, 1>({6, 2, 10}, turns, late, samples);
        check<float, 1>({3, 1, 6}, turns, late, samples);
      }
      check<__nv_bfloat16, 1>({4, 2, 5}, false, late, samples);
    }
  }
}

}  // namespace
}  // namespace ddptrain::cuda::head_kernels
