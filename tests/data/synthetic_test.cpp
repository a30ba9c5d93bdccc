#include "data/images/images.h"

#include <array>
#include <vector>

#include "tests/support/says.h"

namespace ddptrain {
namespace {

TEST(Synthetic, SizesAndLabels) {
  const ImageData data = make_synthetic(5000, 1);
  EXPECT_EQ(data.train.count, 5000);
  EXPECT_EQ(data.test.count, 500);
  EXPECT_EQ(make_synthetic(1, 1).test.count, 10);
  for (const ImageDataset* set : {&data.train, &data.test}) {
    EXPECT_EQ(set->images.size(), static_cast<std::size_t>(set->count * 28 * 28));
    EXPECT_EQ(set->labels.size(), static_cast<std::size_t>(set->count));
    std::array<int, 10> counts{};
    for (const std::uint8_t label : set->labels) ++counts.at(label);
    for (const int count : counts) EXPECT_NEAR(count, static_cast<double>(set->count) / 10, set->count / 25.0);
  }
}

TEST(Synthetic, SeedDecidesEverything) {
  const ImageData first = make_synthetic(100, 5);
  const ImageData again = make_synthetic(100, 5);
  const ImageData other = make_synthetic(100, 6);
  EXPECT_EQ(first.train.images, again.train.images);
  EXPECT_EQ(first.test.labels, again.test.labels);
  EXPECT_NE(first.train.images, other.train.images);
  EXPECT_NE(first.train.labels, other.train.labels);
}

/// Nearest class mean, fitted on the training images, must classify the test images; single pixels must not.
TEST(Synthetic, CanBeLearned) {
  const ImageData data = make_synthetic(2000, 3);
  std::vector<std::array<double, 785>> sums(10);
  for (std::size_t i = 0; i < data.train.labels.size(); ++i) {
    auto& sum = sums[data.train.labels[i]];
    for (std::size_t p = 0; p < 784; ++p) sum[p] += data.train.images[i * 784 + p];
    sum[784] += 1;
  }
  const auto hits = [&](std::size_t from, std::size_t to) {
    int correct = 0;
    for (std::size_t i = 0; i < data.test.labels.size(); ++i) {
      std::size_t best = 0;
      double least = 1e300;
      for (std::size_t c = 0; c < 10; ++c) {
        double distance = 0;
        for (std::size_t p = from; p < to; ++p) {
          const double difference = data.test.images[i * 784 + p] - sums[c][p] / sums[c][784];
          distance += difference * difference;
        }
        if (distance < least) best = c;
        least = std::min(least, distance);
      }
      correct += best == data.test.labels[i] ? 1 : 0;
    }
    return correct;
  };
  EXPECT_GT(hits(0, 784), 195);
  EXPECT_LT(hits(400, 401), 140);
}

TEST(Synthetic, ImpossibleCountsAreRefused) {
  EXPECT_CONTAINS(error_message([] { make_synthetic(0, 1); }), "0 images");
  EXPECT_CONTAINS(error_message([] { make_synthetic(std::int64_t{1} << 40, 1); }), "1 to 4294967295");
}

}  // namespace
}  // namespace ddptrain
