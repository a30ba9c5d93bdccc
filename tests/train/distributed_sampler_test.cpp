#include "runtime/train/step/distributed_sampler.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>
#include <vector>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

using Indices = std::vector<std::uint32_t>;

struct Cut {
  std::int64_t batch;
  std::int64_t grad_accum;
  int world_size;
};

/// The samples of one step in the order micro-step, rank, row.
Indices global_batch(std::int64_t size, const Cut& cut, std::uint64_t seed, std::uint64_t step) {
  Indices indices;
  for (std::int64_t micro = 0; micro < cut.grad_accum; ++micro) {
    for (int rank = 0; rank < cut.world_size; ++rank) {
      const DistributedSampler sampler(size, cut.batch, cut.grad_accum, rank, cut.world_size, seed);
      const SampleOrder order = sampler.order(micro);
      for (std::uint32_t row = 0; row < cut.batch; ++row) indices.push_back(sample_index(order, step, row));
    }
  }
  return indices;
}

Indices epoch_samples(std::int64_t size, const Cut& cut, std::uint64_t seed, std::int64_t epoch) {
  Indices all;
  const std::int64_t steps =
      DistributedSampler(size, cut.batch, cut.grad_accum, 0, cut.world_size, 0).steps_per_epoch();
  for (std::int64_t step = epoch * steps; step < (epoch + 1) * steps; ++step) {
    const Indices batch = global_batch(size, cut, seed, static_cast<std::uint64_t>(step));
    all.insert(all.end(), batch.begin(), batch.end());
  }
  return all;
}

TEST(DistributedSampler, ShardsAreDisjointAndCompleteForAnyWorldSize) {
  for (const int world_size : {1, 2, 3, 4, 7, 8}) {
    for (const std::int64_t grad_accum : {1, 3}) {
      const Cut cut{5, grad_accum, world_size};
      const std::int64_t global = cut.batch * grad_accum * world_size;
      for (const std::int64_t remainder : {std::int64_t{0}, global - 1}) {
        const std::int64_t size = 4 * global + remainder;
        const DistributedSampler sampler(size, cut.batch, grad_accum, world_size - 1, world_size, 1);
        EXPECT_EQ(sampler.samples_per_step(), global);
        EXPECT_EQ(sampler.steps_per_epoch(), 4);
        EXPECT_EQ(sampler.dropped(), remainder);
        const Indices seen = epoch_samples(size, cut, 1, 2);
        EXPECT_EQ(std::set<std::uint32_t>(seen.begin(), seen.end()).size(), static_cast<std::size_t>(4 * global));
        EXPECT_LT(*std::max_element(seen.begin(), seen.end()), size);
      }
    }
  }
}

TEST(DistributedSampler, GlobalBatchesDoNotDependOnHowTheyAreCut) {
  const std::int64_t size = 1000;
  const std::uint64_t seed = 42;
  for (const std::uint64_t step : {0, 1, 30, 41, 42, 1000}) {
    const Indices expected = global_batch(size, {24, 1, 1}, seed, step);
    for (const Cut& cut : {Cut{12, 1, 2}, Cut{8, 1, 3}, Cut{6, 1, 4}, Cut{3, 1, 8}, Cut{6, 4, 1}, Cut{3, 2, 4}}) {
      EXPECT_EQ(global_batch(size, cut, seed, step), expected)
          << "step " << step << ", " << cut.world_size << " ranks of " << cut.batch << " x " << cut.grad_accum;
    }
  }
}

TEST(DistributedSampler, EveryEpochIsShuffledAnewAndTheSeedMatters) {
  const Cut cut{10, 1, 2};
  const Indices first = epoch_samples(400, cut, 7, 0);
  const Indices second = epoch_samples(400, cut, 7, 1);
  const Indices other_seed = epoch_samples(400, cut, 8, 0);
  const Indices high_half = epoch_samples(400, cut, 7 + (std::uint64_t{1} << 40), 0);
  EXPECT_EQ(first, epoch_samples(400, cut, 7, 0));
  const auto same_places = [&](const Indices& a) {
    int same = 0;
    for (std::size_t i = 0; i < a.size(); ++i) same += a[i] == first[i] ? 1 : 0;
    return same;
  };
  // About one place in 400 agrees by chance.
  EXPECT_LT(same_places(second), 12);
  EXPECT_LT(same_places(other_seed), 12);
  EXPECT_LT(same_places(high_half), 12);
}

TEST(DistributedSampler, ImpossibleBatchesAreRefused) {
  EXPECT_CONTAINS(error_message([] { DistributedSampler(100, 0, 1, 0, 1, 0); }), "batch of 0");
  EXPECT_CONTAINS(error_message([] { DistributedSampler(100, -4, 1, 0, 1, 0); }), "batch of -4");
  EXPECT_CONTAINS(error_message([] { DistributedSampler(100, 1, 0, 0, 1, 0); }), "0 micro-steps");
  const std::string message = error_message([] { DistributedSampler(100, 17, 2, 0, 3, 0); });
  EXPECT_CONTAINS(message, "batch of 17 per rank on 3 ranks");
  EXPECT_CONTAINS(message, "100 training samples");
  EXPECT_CONTAINS(message, "largest batch that fits is 16");
  EXPECT_EQ(DistributedSampler(100, 16, 2, 0, 3, 0).steps_per_epoch(), 1);
  EXPECT_CONTAINS(error_message([] { DistributedSampler(7, 1, 1, 0, 8, 0); }), "too few for 8 ranks");
  EXPECT_CONTAINS(error_message([] { DistributedSampler(7, 8, 1, 0, 1, 0); }),
                  "8 per rank on 1 rank with 1 micro-step ");
  const std::int64_t huge = std::int64_t{1} << 62;
  EXPECT_CONTAINS(error_message([=] { DistributedSampler(100, huge, 1, 0, 8, 0); }), "largest batch that fits is 12");
  EXPECT_CONTAINS(error_message([=] { DistributedSampler(100, 8, huge, 0, 8, 0); }), "too few");
}

TEST(DistributedSampler, EvaluationCountsEverySampleOnce) {
  for (const int world_size : {1, 2, 3, 4, 7, 8}) {
    for (const std::int64_t size : {1, 5, 8, 10000, 60000}) {
      std::int64_t next = 0;
      for (int rank = 0; rank < world_size; ++rank) {
        const EvaluationShard shard = DistributedSampler::evaluation(size, rank, world_size);
        EXPECT_EQ(shard.first, next);
        EXPECT_GE(shard.count, size / world_size);
        EXPECT_LE(shard.count, size / world_size + 1);
        next += shard.count;
      }
      EXPECT_EQ(next, size) << world_size << " ranks";
    }
  }
}

Indices permutation(std::uint64_t seed, std::uint32_t epoch, std::uint32_t size) {
  Indices places(size);
  for (std::uint32_t i = 0; i < size; ++i) places[i] = Permutation(seed, epoch, size)(i);
  return places;
}

TEST(Permutation, IsABijectionForAnySize) {
  std::vector<std::uint32_t> sizes = {60000, 65535, 65536, 65537, 131072};
  for (std::uint32_t size = 1; size <= 300; ++size) sizes.push_back(size);
  for (const std::uint32_t size : sizes) {
    Indices sorted = permutation(size * 31, size % 5, size);
    std::sort(sorted.begin(), sorted.end());
    for (std::uint32_t i = 0; i < size; ++i) ASSERT_EQ(sorted[i], i) << "size " << size;
  }
}

double correlation(const Indices& a, const Indices& b) {
  const auto n = static_cast<double>(a.size());
  const double mean = (n - 1) / 2;
  double covariance = 0;
  for (std::size_t i = 0; i < a.size(); ++i) covariance += (a[i] - mean) * (b[i] - mean);
  return covariance / (n * (n * n - 1) / 12);
}

TEST(DistributedSampler, ANeighboursSamplesAreThoseOfThatRank) {
  const DistributedSampler second(1000, 8, 3, 2, 4, 5);
  const DistributedSampler third(1000, 8, 3, 3, 4, 5);
  for (int micro = 0; micro < 3; ++micro) EXPECT_EQ(second.order(micro, 1).first, third.order(micro).first);
}

TEST(Permutation, LooksLikeAShuffle) {
  const std::uint32_t size = 60000;
  const double limit = 4.5 / std::sqrt(size);  // standard deviations of independent sequences
  Indices identity(size);
  std::iota(identity.begin(), identity.end(), 0u);
  for (const std::uint64_t seed : {0, 1, 2, 42}) {
    const Indices now = permutation(seed, 0, size);
    Indices shifted = now;
    std::rotate(shifted.begin(), shifted.begin() + 1, shifted.end());
    EXPECT_LT(std::abs(correlation(now, identity)), limit) << seed;
    EXPECT_LT(std::abs(correlation(now, shifted)), limit) << seed;
    EXPECT_LT(std::abs(correlation(now, permutation(seed, 1, size))), limit) << seed;
    EXPECT_LT(std::abs(correlation(now, permutation(seed + 1, 0, size))), limit) << seed;
  }
}

/// Chi-squared of the samples of the first batches over 60 equal parts of the file: 59 degrees of freedom.
TEST(Permutation, BatchesDrawEvenlyFromTheWholeFile) {
  const Permutation order(9, 0, 60000);
  double chi_squared = 0;
  const int batches = 50;
  for (int b = 0; b < batches; ++b) {
    std::vector<int> counts(60);
    for (std::uint32_t i = 0; i < 600; ++i) ++counts[order(static_cast<std::uint32_t>(b) * 600 + i) / 1000];
    for (const int count : counts) chi_squared += (count - 10.0) * (count - 10.0) / 10.0;
  }
  const double freedom = 59.0 * batches;
  EXPECT_NEAR(chi_squared / freedom, 1.0, 5 * std::sqrt(2 / freedom));
}

}  // namespace
}  // namespace ddptrain
