// Every operation of every device against the CPU in double precision, which sees the same (rounded) inputs.

#include <algorithm>
#include <cstring>

#include "runtime/ops/activation.h"
#include "runtime/ops/checksum.h"
#include "runtime/ops/convolution.h"
#include "runtime/ops/images.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/meta_device.h"
#include "runtime/ops/quantisation.h"
#include "runtime/ops/reduction.h"
#include "tests/ops/conformance.h"

namespace ddptrain::tests {
namespace {

using ConformanceTest = AgainstOracle;

MetricSums* put_sums(Bench& bench) { return bench.put_object(MetricSums{1.5, 2, 3}); }

Values as_values(const MetricSums& sums) {
  return {sums.loss, static_cast<double>(sums.correct), static_cast<double>(sums.samples)};
}

struct ConvCase {
  std::int64_t batch, height, width, in, out, kernel;
};

const std::vector<ConvCase> kConvCases = {{1, 3, 3, 1, 8, 3},  {3, 28, 28, 1, 32, 3}, {2, 26, 26, 32, 64, 3},
                                          {17, 7, 5, 3, 8, 3}, {1, 5, 9, 32, 32, 3},  {5, 4, 4, 8, 16, 1},
                                          {3, 11, 6, 16, 3, 5}};

TEST_P(ConformanceTest, Conv2d) {
  for (const ConvCase& c : kConvCases) {
    for (const bool with_bias : {false, true}) {
      const Shape x{c.batch, c.height, c.width, c.in};
      const Shape weight{c.out, c.kernel, c.kernel, c.in};
      const Shape y{c.batch, c.height - c.kernel + 1, c.width - c.kernel + 1, c.out};
      compare(describe(x, with_bias ? "with bias" : ""), [&](Bench& bench) -> Outputs {
        const Tensor out = bench.poisoned(y);
        const Tensor bias = with_bias ? put(bench, {c.out}, 3) : Tensor{};
        bench.device().get<ConvolutionOps>().conv2d(put(bench, x, 1), put(bench, weight, 2), bias, out);
        return {{"y", bench.take(out)}};
      });
    }
  }
}

TEST_P(ConformanceTest, Conv2dBackward) {
  for (const ConvCase& c : kConvCases) {
    for (const bool accumulate : {false, true}) {
      const Shape x{c.batch, c.height, c.width, c.in};
      const Shape weight{c.out, c.kernel, c.kernel, c.in};
      const Shape y{c.batch, c.height - c.kernel + 1, c.width - c.kernel + 1, c.out};
      compare(describe(x, accumulate ? "accumulated" : ""), [&](Bench& bench) -> Outputs {
        const Tensor dx = bench.poisoned(x);
        const Tensor dweight = gradient(bench, {accumulate, false}, weight);
        const Tensor dweight_alone = gradient(bench, {accumulate, false}, weight);
        const Tensor inputs = put(bench, x, 1);
        const Tensor weights = put(bench, weight, 2);
        const Tensor dy = put(bench, y, 3);
        bench.device().get<ConvolutionOps>().conv2d_backward(inputs, weights, dy, dx, dweight, accumulate);
        bench.device().get<ConvolutionOps>().conv2d_backward(inputs, weights, dy, Tensor{}, dweight_alone, accumulate);
        return {{"dx", bench.take(dx)},
                {"dweight", bench.take(dweight)},
                {"dweight without dx", bench.take(dweight_alone)}};
      });
    }
  }
}

/// With copies to the other layout and back. CPUs have one layout.
TEST_P(ConformanceTest, Conv2dInBothMemoryFormats) {
  if (GetParam().kind == DeviceKind::cpu) GTEST_SKIP() << "one layout";
  for (const MemoryFormat format : {MemoryFormat::nchw, MemoryFormat::nhwc, MemoryFormat::automatic}) {
    for (const ConvCase& c : {kConvCases[1], kConvCases[2]}) {
      const Shape x{c.batch, c.height, c.width, c.in};
      const Shape weight{c.out, c.kernel, c.kernel, c.in};
      const Shape y{c.batch, c.height - c.kernel + 1, c.width - c.kernel + 1, c.out};
      compare(describe(x, fmt::format("format {}", static_cast<int>(format))), [&](Bench& bench) -> Outputs {
        auto& ops = bench.device().get<ConvolutionOps>();
        ops.use(format);
        const Tensor out = bench.poisoned(y);
        const Tensor dx = bench.poisoned(x);
        const Tensor dweight = bench.poisoned(weight);
        const Tensor inputs = put(bench, x, 1);
        const Tensor weights = put(bench, weight, 2);
        ops.conv2d(inputs, weights, put(bench, {c.out}, 3), out);
        ops.conv2d_backward(inputs, weights, put(bench, y, 4), dx, dweight, false);
        return {{"y", bench.take(out)}, {"dx", bench.take(dx)}, {"dweight", bench.take(dweight)}};
      });
    }
  }
}

TEST_P(ConformanceTest, BiasReluBackward) {
  for (const Shape& shape : std::vector<Shape>{{1, 1}, {3, 26, 26, 32}, {17, 128}, {1025, 3}, {5, 7, 5, 64}}) {
    for (const bool accumulate : {false, true}) {
      compare(describe(shape, accumulate ? "accumulated" : ""), [&](Bench& bench) -> Outputs {
        Values y = random_values(element_count(shape), 1);
        for (double& value : y) value = std::max(value, 0.0);
        const Tensor dy = put(bench, shape, 2);
        const Tensor dbias = gradient(bench, {accumulate, false}, {shape.back()});
        bench.device().get<ActivationOps>().bias_relu_backward(bench.put(y, shape), dy, 1.25f, dbias, accumulate);
        return {{"dy", bench.take(dy)}, {"dbias", bench.take(dbias)}};
      });
    }
  }
}

const std::vector<Shape> kPoolShapes = {{1, 2, 2, 1}, {3, 24, 24, 64}, {17, 5, 7, 3}, {2, 6, 9, 32}, {5, 3, 2, 8}};

/// Values and biases are exact in every precision, so the winner of every window, ties included, is well defined.
TEST_P(ConformanceTest, BiasReluPoolDropout) {
  for (const Shape& x : kPoolShapes) {
    for (const float rate : {0.0f, 0.25f}) {
      const Shape out_shape{x[0], x[1] / 2, x[2] / 2, x[3]};
      std::vector<Values> winners;
      compare(describe(x, rate > 0 ? "with dropout" : ""), [&](Bench& bench) -> Outputs {
        const Tensor out = bench.poisoned(out_shape);
        const Tensor winner = bench.poisoned_bytes(out_shape);
        bench.device().get<ImageOps>().bias_relu_pool_dropout(bench.put(random_eighths(element_count(x), 1, 2.0), x),
                                                              bench.put(random_eighths(x[3], 2, 1.0), {x[3]}),
                                                              make_dropout(bench, rate), out, winner);
        winners.push_back(bench.take(winner));
        return {{"out", bench.take(out)}};
      });
      EXPECT_EQ(winners.at(0), winners.at(1)) << describe(x);
    }
  }
}

TEST_P(ConformanceTest, PoolTakesTheFirstLargest) {
  Bench bench(*tested_);
  // One channel; windows: clear winner, tie of all, tie of the last two, nothing above zero (with bias -0.5).
  const Values x = {1, 4, 2, 2, 0, 1, 0.25f, -1,  //
                    2, 3, 2, 2, 3, 3, 0.5f,  0};
  Dropout none;
  none.step = {bench.put_object(StepState{}), 0};
  const Tensor out = bench.poisoned({1, 1, 4, 1});
  const Tensor winner = bench.poisoned_bytes({1, 1, 4, 1});
  auto& pool = tested_->get<ImageOps>();
  pool.bias_relu_pool_dropout(bench.put(x, {1, 2, 8, 1}), bench.put({-0.5}, {1}), none, out, winner);
  EXPECT_EQ(bench.take(out), (Values{3.5, 1.5, 2.5, 0}));
  EXPECT_EQ(bench.take(winner), (Values{1, 0, 2, 4}));
  const Tensor dx = bench.poisoned({1, 2, 8, 1});
  const Tensor dbias = bench.put({10}, {1});
  pool.bias_relu_pool_dropout_backward(bench.put({1, 2, 4, 8}, {1, 1, 4, 1}), winner, none, dx, dbias, true);
  EXPECT_EQ(bench.take(dx), (Values{0, 1, 2, 0, 0, 0, 0, 0,  //
                                    0, 0, 0, 0, 4, 0, 0, 0}));
  EXPECT_EQ(bench.take(dbias), (Values{17}));
}

TEST_P(ConformanceTest, BiasReluPoolDropoutBackward) {
  for (const Shape& x : kPoolShapes) {
    for (const bool accumulate : {false, true}) {
      const Shape out{x[0], x[1] / 2, x[2] / 2, x[3]};
      compare(describe(x, accumulate ? "accumulated" : ""), [&](Bench& bench) -> Outputs {
        std::vector<std::uint8_t> winner(static_cast<std::size_t>(element_count(out)));
        for (std::size_t i = 0; i < winner.size(); ++i) {
          winner[i] = static_cast<std::uint8_t>(philox(static_cast<std::uint32_t>(i), 0, 0, 0, 3).word[0] % 5);
        }
        const Tensor dx = bench.poisoned(x);
        const Tensor dbias = gradient(bench, {accumulate, false}, {x[3]});
        bench.device().get<ImageOps>().bias_relu_pool_dropout_backward(
            put(bench, out, 1), bench.put_bytes(winner, out), make_dropout(bench, 0.25f), dx, dbias, accumulate);
        return {{"dx", bench.take(dx)}, {"dbias", bench.take(dbias)}};
      });
    }
  }
}

struct BiasedCase {
  std::int64_t batch, in, out;
};

const std::vector<BiasedCase> kBiasedCases = {{1, 8, 8}, {3, 9216, 128}, {17, 33, 10}, {300, 128, 10},
                                              {5, 7, 3}, {132, 576, 40}, {1, 1, 1}};

/// transformer_linear_conformance_test.cpp has the backward pass.
TEST_P(ConformanceTest, Linear) {
  for (const BiasedCase& c : kBiasedCases) {
    for (const bool with_bias : {false, true}) {
      compare(describe({c.batch, c.in, c.out}, with_bias ? "with bias" : ""), [&](Bench& bench) -> Outputs {
        const Tensor y = bench.poisoned({c.batch, c.out});
        const Tensor bias = with_bias ? put(bench, {c.out}, 3) : Tensor{};
        bench.device().get<LinearOps>().linear(put(bench, {c.batch, c.in}, 1), put(bench, {c.out, c.in}, 2), bias, y);
        return {{"y", bench.take(y)}};
      });
    }
  }
}

TEST_P(ConformanceTest, BiasReluDropout) {
  for (const Shape& x : std::vector<Shape>{{1, 1}, {3, 128}, {17, 100}, {300, 33}, {5, 1000}}) {
    for (const float rate : {0.0f, 0.5f, 0.1f}) {
      compare(describe(x, fmt::format("rate {}", rate).c_str()), [&](Bench& bench) -> Outputs {
        const Tensor values = bench.put(random_eighths(element_count(x), 1, 2.0), x);
        bench.device().get<ActivationOps>().bias_relu_dropout(values, bench.put(random_eighths(x[1], 2, 1.0), {x[1]}),
                                                              make_dropout(bench, rate));
        return {{"x", bench.take(values)}};
      });
    }
  }
}

TEST_P(ConformanceTest, GatherImages) {
  for (const std::int64_t count : {1, 3, 17, 300}) {
    for (const bool shuffle : {false, true}) {
      compare(describe({count}, shuffle ? "shuffled" : "in order"), [&](Bench& bench) -> Outputs {
        const ImageBatch batch = make_batch(bench, count, 5, 28, 10, 11, shuffle);
        const Tensor out = bench.poisoned({count, 5, 28, 1});
        bench.device().get<ImageOps>().gather_images(batch, out);
        return {{"out", bench.take(out)}};
      });
    }
  }
}

TEST_P(ConformanceTest, SoftmaxCrossEntropy) {
  for (const Shape& shape : std::vector<Shape>{{1, 1}, {1, 10}, {3, 2}, {17, 10}, {300, 10}, {5, 100}}) {
    compare(describe(shape), [&](Bench& bench) -> Outputs {
      const ImageBatch batch = make_batch(bench, shape[0], 1, 1, shape[1]);
      const Values values = random_values(element_count(shape), 1, -8.0, 8.0);
      const Tensor logits = bench.put(values, shape);
      const Tensor in_place = bench.put(values, shape);
      const Tensor dlogits = bench.poisoned(shape);
      MetricSums* separate = put_sums(bench);
      MetricSums* overwritten = put_sums(bench);
      MetricSums* evaluated = put_sums(bench);
      bench.device().get<LossOps>().softmax_cross_entropy(logits, batch, 0.25f, dlogits, separate);
      bench.device().get<LossOps>().softmax_cross_entropy(logits, batch, 0.0f, Tensor{}, evaluated);
      bench.device().get<LossOps>().softmax_cross_entropy(in_place, batch, 0.25f, in_place, overwritten);
      return {{"dlogits", bench.take(dlogits)},
              {"dlogits in place", bench.take(in_place)},
              {"logits afterwards", bench.take(logits)},
              {"sums", as_values(bench.take_object(separate))},
              {"sums in place", as_values(bench.take_object(overwritten))},
              {"sums without gradient", as_values(bench.take_object(evaluated))}};
    });
  }
}

TEST_P(ConformanceTest, SoftmaxOfHugeLogitsIsFinite) {
  Bench bench(*tested_);
  const ImageBatch batch = make_batch(bench, 2, 1, 1, 3);
  const Tensor logits = bench.put({30000, -30000, 0, -30000, -30000, -30000}, {2, 3});
  MetricSums* sums = bench.put_object(MetricSums{});
  bench.device().get<LossOps>().softmax_cross_entropy(logits, batch, 1.0f, logits, sums);
  EXPECT_TRUE(std::isfinite(bench.take_object(sums).loss));
  EXPECT_TRUE(std::isfinite(norm(bench.take(logits))));
}

/// Of a prediction whose label has probability 0, softmax - onehot is finite.
TEST_P(ConformanceTest, TheGradientOfALossThatIsNotFiniteIsNan) {
  Bench bench(*tested_);
  const ImageBatch batch = make_batch(bench, 2, 1, 1, 3);
  constexpr double kNone = -std::numeric_limits<double>::infinity();
  for (int label = 0; label < 3; ++label) {  // whichever the first one's is, the second row stays as it is
    const Tensor dlogits = bench.poisoned({2, 3});
    Values row = {1, 1, 1, 1, 2, 3};
    row[static_cast<std::size_t>(label)] = kNone;
    MetricSums* sums = bench.put_object(MetricSums{});
    bench.device().get<LossOps>().softmax_cross_entropy(bench.put(row, {2, 3}), batch, 1.0f, dlogits, sums);
    const Values gradient = bench.take(dlogits);
    const bool finite = std::isfinite(bench.take_object(sums).loss);
    for (int c = 0; c < 3; ++c) EXPECT_EQ(std::isfinite(gradient[static_cast<std::size_t>(c)]), finite) << label;
    for (int c = 3; c < 6; ++c) EXPECT_TRUE(std::isfinite(gradient[static_cast<std::size_t>(c)])) << label;
    if (!finite) return;
  }
  ADD_FAILURE() << "no label's loss was infinite";
}

TEST_P(ConformanceTest, SumOfSquaresAndClipScale) {
  for (const std::int64_t count : {1, 3, 255, 1025, 100003, 5000011}) {
    for (const float max_norm : {0.5f, 1e6f}) {
      compare(describe({count}), [&](Bench& bench) -> Outputs {
        Device& device = bench.device();
        auto* sums = static_cast<float*>(bench.put_bytes(std::vector<std::uint8_t>(12, 0xFF), {12}).data);  // NaN
        float* scale = bench.put_object(std::nanf(""));
        const Stream stream = device.compute_stream();
        device.get<ReductionOps>().sums_of_squares({{put(bench, {count}, 1), sums}, {put(bench, {3}, 2), sums + 1}});
        device.get<ReductionOps>().sums_of_squares({{bench.put_master(random_values(500, 3), {500}), sums + 2}});
        device.get<ReductionOps>().clip_scale({sums, DType::f32, {3}}, max_norm, {bench.put_object(StepState{})},
                                              bench.put_object(NonFinite{}), scale, stream);
        Values taken;
        for (int i = 0; i < 3; ++i) taken.push_back(bench.take_object(sums + i));
        return {{"sums", taken}, {"scale", {bench.take_object(scale)}}};
      });
    }
  }
}

/// More tensors than one launch takes, of sizes that several blocks, one block or a part of one share; some begin
/// between two places that are aligned. Each sum has the bits that it has alone.
TEST_P(ConformanceTest, SumsOfSquaresDoNotDependOnEachOther) {
  Bench bench(*tested_);
  constexpr std::int64_t kCount = 300;
  auto* const sums =
      static_cast<float*>(bench.put_bytes(std::vector<std::uint8_t>(kCount * 4, 0xFF), {kCount * 4}).data);
  auto* const alone = bench.put_object(0.0f);
  std::vector<SumOfSquares> list;
  for (std::int64_t i = 0; i < kCount; ++i) {
    const std::int64_t size = i % 97 == 5 ? 300007 : 1 + i * i % 5003;
    const std::int64_t skipped = i % 3 == 0 ? 1 : 0;
    const Tensor values = put(bench, {size + skipped}, static_cast<std::uint32_t>(i));
    list.push_back({values.stretch(skipped, size), sums + (kCount - 1 - i)});
  }
  ReductionOps& ops = bench.device().get<ReductionOps>();
  ops.sums_of_squares(list);
  for (const SumOfSquares& one : list) {
    double expected = 0.0;
    for (const double value : bench.take(one.values)) expected += value * value;
    ops.sums_of_squares({{one.values, alone}});
    const double sum = bench.take_object(one.sum);
    EXPECT_NEAR(sum, expected, 1e-4 * expected) << one.values.size();
    EXPECT_EQ(sum, bench.take_object(alone)) << one.values.size();
  }
  ops.sums_of_squares({});
}

/// Any number of bytes, wherever they begin; one bit anywhere changes the sum.
TEST_P(ConformanceTest, ChecksumsAreTheSameOnEveryDevice) {
  Bench bench(*tested_);
  constexpr std::uint64_t kBefore = 5;
  for (const std::size_t count : {std::size_t{1}, std::size_t{7}, std::size_t{1024}, std::size_t{3000011}}) {
    for (const std::size_t from : {std::size_t{0}, std::size_t{1}}) {
      std::vector<std::uint8_t> bytes(from + count);
      for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i * 7 + i / 251);
      const auto checksum = [&] {
        auto* sum = bench.put_object(kBefore);
        const Tensor memory = bench.put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())});
        const Tensor values{memory.as<std::uint8_t>() + from, DType::u8, {static_cast<std::int64_t>(count)}};
        bench.device().get<ChecksumOps>().add_checksum(values, sum);
        return bench.take_object(sum);
      };
      std::uint64_t expected = kBefore;
      for (std::size_t at = 0; at < count; at += 8) {
        std::uint64_t word = 0;
        std::memcpy(&word, bytes.data() + from + at, std::min<std::size_t>(8, count - at));
        expected += at_place(word, at / 8);
      }
      EXPECT_EQ(checksum(), expected) << count << " from " << from;
      bytes[from + count / 2] ^= 0x80;
      EXPECT_NE(checksum(), expected) << count << " from " << from;
    }
  }
}

TEST_P(ConformanceTest, RepeatedRunsGiveTheSameBits) {
  Bench bench(*tested_);
  const Tensor x = put(bench, {3, 26, 26, 32}, 1);
  const Tensor weight = put(bench, {64, 3, 3, 32}, 2);
  const Tensor dy = put(bench, {3, 24, 24, 64}, 3);
  const auto gradients = [&] {
    const Tensor dx = bench.poisoned(x.shape);
    const Tensor dweight = bench.poisoned(weight.shape);
    bench.device().get<ConvolutionOps>().conv2d_backward(x, weight, dy, dx, dweight, false);
    Values both = bench.take(dx);
    const Values second = bench.take(dweight);
    both.insert(both.end(), second.begin(), second.end());
    return both;
  };
  EXPECT_EQ(gradients(), gradients());
}

TEST_P(ConformanceTest, WrongShapesThrow) {
  Bench bench(*tested_);
  Device& device = bench.device();
  const Tensor x = put(bench, {2, 8}, 1);
  const Tensor weight = put(bench, {3, 8}, 2);
  EXPECT_THROW(device.get<LinearOps>().linear(x, weight, Tensor{}, bench.poisoned({2, 4})), Error);
  EXPECT_THROW(device.get<LinearOps>().linear(x, weight, bench.poisoned({4}), bench.poisoned({2, 3})), Error);
  const Tensor image = put(bench, {1, 4, 4, 1}, 3);
  const Tensor kernel = put(bench, {1, 3, 3, 1}, 4);
  EXPECT_THROW(device.get<ConvolutionOps>().conv2d(image, kernel, Tensor{}, bench.poisoned({1, 4, 4, 1})), Error);
  EXPECT_THROW(device.get<ActivationOps>().bias_relu_dropout(x, bench.poisoned({7}), Dropout{}), Error);
}

INSTANTIATE_TEST_SUITE_P(Devices, ConformanceTest, ::testing::ValuesIn(device_cases()),
                         [](const auto& param) { return param.param.name; });

TEST(CpuThreads, GiveTheResultsOfOneThread) {
  const DeviceCase test_case = device_cases().front();
  const Shape x{5, 9, 11, 3};
  const Shape y{5, 7, 9, 8};
  const auto run = [&](int threads) {
    const auto device = make_device(test_case, threads);
    Bench bench(*device);
    const Tensor dx = bench.poisoned(x);
    const Tensor dweight = bench.poisoned({8, 3, 3, 3});
    const Tensor dy = put(bench, y, 3);
    const Tensor dbias = bench.poisoned({8});
    device->get<ActivationOps>().bias_relu_backward(put(bench, y, 4), dy, 1.0f, dbias, false);
    device->get<ConvolutionOps>().conv2d_backward(put(bench, x, 1), put(bench, {8, 3, 3, 3}, 2), dy, dx, dweight,
                                                  false);
    return std::vector<Values>{bench.take(dx), bench.take(dweight), bench.take(dbias)};
  };
  const std::vector<Values> one = run(1);
  for (const int threads : {2, 3, 8}) {
    const std::vector<Values> many = run(threads);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_LE(relative_error(many[i], one[i]), 1e-6) << threads;
    EXPECT_EQ(many, run(threads));
  }
}

TEST(CpuDevice, RefusesPrecisionsItDoesNotHave) {
  EXPECT_THROW(make_cpu_device({Precision::bf16}), UsageError);
  EXPECT_THROW(make_cpu_device({Precision::tf32}), UsageError);
}

TEST(MetaDevice, HoldsMoreThanThereIs) {
  const auto device = make_meta_device({.precision = Precision::bf16, .fp8 = true}, DeviceKind::cuda);
  EXPECT_EQ(device->dtype(), DType::bf16);
  std::vector<Buffer> buffers;
  for (int i = 0; i < 16; ++i) buffers.push_back(device->allocate(std::size_t{1} << 40));
  EXPECT_EQ(total_bytes(buffers), std::size_t{16} << 40);
  EXPECT_TRUE(device->has_own_memory());
  EXPECT_FALSE(make_meta_device({}, DeviceKind::cpu)->has_own_memory());
  EXPECT_TRUE(device->get<QuantisationOps>().fits(32, 64));
  EXPECT_FALSE(make_meta_device({}, DeviceKind::cpu)->get<QuantisationOps>().fits(32, 64));
}

TEST(CudaDevice, IsRefusedWhereThereIsNone) {
  if (cuda_device_count() > 0) GTEST_SKIP() << "this machine has a GPU";
  EXPECT_THROW(make_cuda_device({}, 0), UsageError);
}

}  // namespace
}  // namespace ddptrain::tests
