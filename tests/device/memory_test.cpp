#include <algorithm>
#include <bit>

#include "tests/ops/bench.h"

namespace ddptrain::tests {
namespace {

class MemoryTest : public DeviceTest {};

TEST_P(MemoryTest, AllocationsAreZeroedAndAligned) {
  for (const std::size_t bytes : {1u, 100u, 1000003u}) {
    const Buffer buffer = device_->allocate(bytes);
    EXPECT_EQ(buffer.bytes(), bytes);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer.data()) % 256, 0u);
    std::vector<std::uint8_t> host(bytes, 1);
    device_->copy_to_host(host.data(), buffer.data(), bytes);
    EXPECT_EQ(host, std::vector<std::uint8_t>(bytes, 0));
  }
}

TEST_P(MemoryTest, ZeroClearsExactlyItsBytes) {
  const Tensor bytes = bench_->put_bytes(std::vector<std::uint8_t>(64, 7), {64});
  device_->zero(bytes.as<std::uint8_t>() + 16, 32, device_->compute_stream());
  const Values values = bench_->take(bytes);
  for (std::size_t i = 0; i < values.size(); ++i) EXPECT_EQ(values[i], i >= 16 && i < 48 ? 0.0 : 7.0) << i;
}

TEST_P(MemoryTest, ConvertRoundsToNearestEven) {
  // 8 bits of mantissa: 1 + 1/256 lies between 1 and 1 + 1/128, 1 + 3/256 between 1 + 1/128 and 1 + 1/64.
  const std::vector<float> source = {
      1.0f + 1.0f / 256, 1.0f + 3.0f / 256, 1.0f + 1.0f / 256 + 1e-6f, -2.0f, 0.0f, 3e38f};
  const std::vector<float> expected = {
      1.0f, 1.0f + 1.0f / 64, 1.0f + 1.0f / 128, -2.0f, 0.0f, std::bit_cast<float>(0x7F620000u)};
  const Buffer wide = device_->allocate(source.size() * 4);
  const Buffer narrow = device_->allocate(source.size() * 2);
  const Shape shape{static_cast<std::int64_t>(source.size())};
  device_->copy_to_device(wide.data(), source.data(), source.size() * 4);
  device_->convert(wide.view(DType::f32, shape), narrow.view(DType::bf16, shape), device_->compute_stream());
  device_->convert(narrow.view(DType::bf16, shape), wide.view(DType::f32, shape), device_->compute_stream());
  std::vector<float> result(source.size());
  device_->copy_to_host(result.data(), wide.data(), source.size() * 4);
  EXPECT_EQ(result, expected);
}

/// Small ones, as a token of a text needs, and in a graph.
TEST_P(MemoryTest, CopiesOfAllSizesReachTheOtherSide) {
  for (const std::size_t bytes : {1, 4, 6, 8, 1020, 4096, 4100, 70000}) {
    for (const std::size_t offset : {0, 2, 4, 8}) {  // half of it on the device: the sides are aligned differently
      SCOPED_TRACE(std::to_string(bytes) + " bytes at " + std::to_string(offset));
      const std::size_t all = bytes + 2 * offset;
      const Buffer from = device_->allocate_pinned(all), to = device_->allocate_pinned(all);
      const Buffer on_device = device_->allocate(all);
      const auto at = [&](const Buffer& buffer) { return static_cast<char*>(buffer.data()) + offset; };
      void* const there = static_cast<char*>(on_device.data()) + offset / 2;
      const auto round_trip = [&] {
        device_->copy(there, at(from), bytes, device_->compute_stream());
        device_->copy(at(to), there, bytes, device_->compute_stream());
      };
      const auto fill = [&](char first) {
        for (std::size_t i = 0; i < all; ++i) static_cast<char*>(from.data())[i] = static_cast<char>(first + i % 23);
        std::fill_n(static_cast<char*>(to.data()), all, '-');
      };
      const auto expect_copied = [&](char first) {
        device_->synchronize();
        for (std::size_t i = 0; i < all; ++i) {
          const bool inside = i >= offset && i < offset + bytes;
          ASSERT_EQ(static_cast<char*>(to.data())[i], inside ? static_cast<char>(first + i % 23) : '-') << i;
        }
      };
      fill('A');
      round_trip();
      expect_copied('A');
      const std::unique_ptr<Graph> graph = device_->capture(round_trip);
      if (!graph) continue;
      fill('a');
      graph->launch();
      expect_copied('a');
    }
  }
}

/// So many values that a copy which did not wait for them would show.
TEST_P(MemoryTest, OperationsReadAndWritePinnedMemory) {
  constexpr std::int64_t kCount = (1 << 22) + 3;
  const Shape shape{kCount};
  std::vector<float> source(kCount);
  for (std::int64_t i = 0; i < kCount; ++i) source[static_cast<std::size_t>(i)] = static_cast<float>(i % 1021) - 500.0f;
  const Buffer on_device = device_->allocate(DType::f32, shape);
  const std::size_t bytes = on_device.bytes();
  const Buffer first = device_->allocate_pinned(bytes), second = device_->allocate_pinned(bytes);
  for (const Buffer* buffer : {&first, &second}) {
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(buffer->data()) % 256, 0u);
    EXPECT_EQ(std::count(static_cast<float*>(buffer->data()), static_cast<float*>(buffer->data()) + kCount, 0.0f),
              kCount);
  }
  const auto values_of = [](const Buffer& buffer) {
    const auto* values = static_cast<const float*>(buffer.data());
    return std::vector<float>(values, values + kCount);
  };
  const Stream stream = device_->compute_stream();
  device_->copy_to_device(on_device.data(), source.data(), bytes);
  device_->convert(on_device.view(DType::f32, shape), first.view(DType::f32, shape), stream);
  device_->copy(second.data(), first.data(), bytes, stream);
  device_->zero(first.data(), bytes, stream);
  device_->zero(on_device.data(), bytes, stream);
  device_->convert(second.view(DType::f32, shape), on_device.view(DType::f32, shape), stream);
  device_->synchronize();
  EXPECT_EQ(values_of(second), source);
  EXPECT_EQ(values_of(first), std::vector<float>(kCount, 0.0f));
  std::vector<float> copy(kCount);
  device_->copy_to_host(copy.data(), on_device.data(), bytes);
  EXPECT_EQ(copy, source);
  std::fill(copy.begin(), copy.end(), 0.0f);
  device_->copy_to_host(copy.data(), second.data(), bytes);
  EXPECT_EQ(copy, source);
  device_->copy_to_device(first.data(), source.data(), bytes);
  EXPECT_EQ(values_of(first), source);
}

/// So large that work which does not wait for other work sees what was there before.
TEST_P(MemoryTest, ConcurrentWorkFollowsEarlierWorkAndIsWaitedFor) {
  constexpr std::int64_t kCount = 1 << 22;
  const Shape shape{kCount};
  const std::vector<float> source(kCount, 1.0f + 1.0f / 256);
  const Buffer wide = device_->allocate(DType::f32, shape), narrow = device_->allocate(DType::bf16, shape);
  const Buffer concurrent = device_->allocate(DType::f32, shape), result = device_->allocate(DType::f32, shape);
  device_->copy_to_device(wide.data(), source.data(), wide.bytes());
  const auto step = [&] {
    device_->convert(wide.view(DType::f32, shape), narrow.view(DType::bf16, shape), device_->compute_stream());
    device_->run_concurrently([&] {
      device_->convert(narrow.view(DType::bf16, shape), concurrent.view(DType::f32, shape), device_->compute_stream());
    });
    device_->zero(result.data(), result.bytes(), device_->compute_stream());
    device_->wait_concurrent();
    device_->copy(result.data(), concurrent.data(), result.bytes(), device_->compute_stream());
  };
  const auto expect_right = [&](const char* how) {
    std::vector<float> values(kCount);
    device_->copy_to_host(values.data(), result.data(), result.bytes());
    EXPECT_EQ(std::count(values.begin(), values.end(), 1.0f), kCount) << how;
  };
  step();
  expect_right("at once");
  const std::unique_ptr<Graph> graph = device_->capture(step);
  if (!graph) return;
  for (const Buffer* buffer : {&narrow, &concurrent, &result}) {
    device_->zero(buffer->data(), buffer->bytes(), device_->compute_stream());
  }
  graph->launch();
  expect_right("in a graph");
}

INSTANTIATE_TEST_SUITE_P(Devices, MemoryTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

TEST(CpuConvert, FromDoubleRoundsOnce) {
  const auto device = make_cpu_device({Precision::fp64});
  // Just above the middle of two bf16 values; rounding to f32 first would land on the middle and then go to even.
  double value = 1.0 + 1.0 / 256 + std::ldexp(1.0, -40);
  std::uint16_t narrow = 0;
  device->convert({&value, DType::f64, {1}}, {&narrow, DType::bf16, {1}}, {});
  EXPECT_EQ(narrow, 0x3F81u);
}

}  // namespace
}  // namespace ddptrain::tests
