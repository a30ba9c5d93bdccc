#include "runtime/outer/codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "tests/outer/outer_rig.h"

namespace ddptrain {
namespace {

constexpr OuterCodec kAll[] = {OuterCodec::fp32, OuterCodec::bf16, OuterCodec::int8, OuterCodec::int4};

std::vector<float> decoded(OuterCodec codec, const std::vector<std::uint8_t>& bytes, std::size_t count) {
  std::vector<float> values(count, -7.0f);
  decode(codec, bytes, values);
  return values;
}

std::vector<std::uint8_t> encoded(OuterCodec codec, std::vector<float>& values) {
  std::vector<std::uint8_t> bytes(encoded_bytes(codec, std::ssize(values)));
  EXPECT_TRUE(encode(codec, values, bytes.data()));
  return bytes;
}

TEST(CodecTest, ValueIsDecodedValuePlusError) {
  for (const OuterCodec codec : kAll) {
    for (const std::int64_t count : {1, 63, 64, 65, 1000}) {
      const std::vector<float> before = some_values(count, 1);
      std::vector<float> error = before;
      const std::vector<std::uint8_t> bytes = encoded(codec, error);
      const std::vector<float> after = decoded(codec, bytes, before.size());
      for (std::size_t i = 0; i < before.size(); ++i) {
        EXPECT_FLOAT_EQ(after[i] + error[i], before[i]) << name_of(codec) << ' ' << i;
      }
    }
  }
}

TEST(CodecTest, ErrorsAreAFractionOfTheLargestValueOfABlock) {
  const std::vector<float> before = some_values(640, 2);
  const auto largest_error = [&](OuterCodec codec) {
    std::vector<float> error = before;
    encoded(codec, error);
    float worst = 0.0f;
    for (std::size_t block = 0; block < before.size(); block += kCodecBlock) {
      float most = 0.0f, most_error = 0.0f;
      for (std::size_t i = block; i < block + kCodecBlock; ++i) {
        most = std::max(most, std::abs(before[i]));
        most_error = std::max(most_error, std::abs(error[i]));
      }
      worst = std::max(worst, most_error / most);
    }
    return worst;
  };
  EXPECT_EQ(largest_error(OuterCodec::fp32), 0.0f);
  EXPECT_LT(largest_error(OuterCodec::bf16), 1.0f / 256);
  EXPECT_LT(largest_error(OuterCodec::int8), 1.2f / 254);
  EXPECT_LT(largest_error(OuterCodec::int4), 1.2f / 14);
}

TEST(CodecTest, ErrorFeedbackSendsAllInTheEnd) {
  for (const OuterCodec codec : {OuterCodec::bf16, OuterCodec::int8, OuterCodec::int4}) {
    const std::vector<float> each = some_values(128, 3);
    std::vector<float> residual(each.size(), 0.0f);
    std::vector<double> arrived(each.size(), 0.0);
    constexpr int kRounds = 200;
    for (int round = 0; round < kRounds; ++round) {
      for (std::size_t i = 0; i < each.size(); ++i) residual[i] += each[i];
      const std::vector<float> values = decoded(codec, encoded(codec, residual), each.size());
      for (std::size_t i = 0; i < each.size(); ++i) arrived[i] += values[i];
    }
    for (std::size_t i = 0; i < each.size(); ++i) {
      EXPECT_NEAR(arrived[i] / kRounds, each[i], 0.05) << name_of(codec) << ' ' << i;  // without: up to 7
    }
  }
}

TEST(CodecTest, ExtremeValuesStayFinite) {
  const float most = std::numeric_limits<float>::max();
  for (const OuterCodec codec : kAll) {
    std::vector<float> values = {most, -most, 0.0f, std::numeric_limits<float>::denorm_min()};
    const std::vector<std::uint8_t> bytes = encoded(codec, values);
    EXPECT_TRUE(is_finite_encoding(codec, bytes, 4)) << name_of(codec);
    for (const float value : decoded(codec, bytes, 4)) EXPECT_TRUE(std::isfinite(value)) << name_of(codec);
  }
}

TEST(CodecTest, NotFiniteIsNotEncoded) {
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
    for (const OuterCodec codec : kAll) {
      std::vector<float> values = {1.0f, bad};
      std::vector<std::uint8_t> bytes(encoded_bytes(codec, 2));
      EXPECT_FALSE(encode(codec, values, bytes.data()));
      EXPECT_EQ(values[0], 1.0f);
    }
  }
}

TEST(CodecTest, RangesCoverAllValues) {
  for (const std::int64_t size : {1, 64, 1000, 1000000}) {
    for (const std::int64_t fragments : {1, 2, 7, 100}) {
      const OuterLayout layout{0, size, fragments, OuterCodec::int8};
      std::int64_t end = 0;
      for (std::int64_t i = 0; i < fragments; ++i) {
        EXPECT_EQ(layout.range(i).begin, end);
        EXPECT_GE(layout.range(i).count(), 0);
        end = layout.range(i).end;
      }
      EXPECT_EQ(end, size);
    }
  }
}

TEST(EntryTest, IsReadAsItWasWritten) {
  for (const OuterCodec codec : kAll) {
    const OuterLayout layout{77, 1000, 3, codec};
    const std::string bytes = entry_of(layout, "a-1.x_Y", 5, 4, some_values(layout.range(2).count(), 4), 2);
    const auto parsed = parse_entry(bytes, layout);
    ASSERT_TRUE(std::holds_alternative<OuterEntry>(parsed)) << fault_in(bytes, layout);
    const auto& entry = std::get<OuterEntry>(parsed);
    EXPECT_EQ(entry.run, 77u);
    EXPECT_EQ(entry.group, "a-1.x_Y");
    EXPECT_EQ(entry.round, 5u);
    EXPECT_EQ(entry.base, 4u);
    EXPECT_EQ(entry.fragment, 2u);
    EXPECT_GE(entry.payload.data(), bytes.data());
    EXPECT_EQ(entry.payload.size(), encoded_bytes(codec, layout.range(2).count()));
  }
}

TEST(EntryTest, EveryChangedByteIsRefused) {
  const OuterLayout layout{77, 100, 1, OuterCodec::int8};
  const std::string good = entry_of(layout, "a", 0, 0, some_values(100, 5));
  ASSERT_EQ(fault_in(good, layout), "");
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::string bad = good;
    bad[i] = static_cast<char>(bad[i] ^ 1);
    EXPECT_NE(fault_in(bad, layout), "") << i;
  }
  for (std::size_t size = 0; size < good.size(); ++size) EXPECT_NE(fault_in(good.substr(0, size), layout), "") << size;
  EXPECT_NE(fault_in(good + "x", layout), "");
}

TEST(EntryTest, SaysWhatIsWrong) {
  const OuterLayout layout{77, 100, 2, OuterCodec::int8};
  const auto said = [&](const std::string& bytes, const OuterLayout& reader) { return fault_in(bytes, reader); };
  const std::string good = entry_of(layout, "a", 0, 0, some_values(64, 6));
  EXPECT_EQ(said("hello", layout), "5 bytes are no entry");
  EXPECT_EQ(said(std::string(200, 'x'), layout), "it does not begin as an entry does");
  EXPECT_EQ(said(good, {78, 100, 2, OuterCodec::int8}), "it is of a run with other settings");
  EXPECT_NE(said(good, {77, 100, 2, OuterCodec::int4}).find("in place of int4"), std::string::npos);
  EXPECT_NE(said(good, {77, 1000, 2, OuterCodec::int8}).find("bytes, and fragment 0 has"), std::string::npos);
  EXPECT_NE(
      said(entry_of({77, 100, 4, OuterCodec::int8}, "a", 0, 0, some_values(64, 6), 3), layout).find("fragment 3 of 2"),
      std::string::npos);
  EXPECT_NE(said(entry_of(layout, "a b", 0, 0, some_values(64, 6)), layout).find("name of its group"),
            std::string::npos);
}

/// Its checksum is right, so a program of this project, or one that knows the format, has written it.
TEST(EntryTest, ValuesThatAreNotFiniteAreRefused) {
  const OuterLayout layout{77, 64, 1, OuterCodec::int8};
  std::string payload(encoded_bytes(layout.codec, 64), '\1');
  const std::uint16_t infinite = 0x7F80;
  std::memcpy(payload.data(), &infinite, sizeof(infinite));
  EXPECT_NE(fault_in(write_entry({0, "a", 0, 0, 0, payload}, layout), layout).find("NaN or infinite"),
            std::string::npos);
}

}  // namespace
}  // namespace ddptrain
