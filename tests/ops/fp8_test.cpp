// Tensors in FP8: what is written, how it is scaled, and the operations on them against the CPU in double precision.

#include <algorithm>
#include <functional>
#include <utility>

#include "runtime/ops/gated.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/quantisation.h"
#include "runtime/ops/rms_norm.h"
#include "tests/ops/conformance.h"

namespace ddptrain::tests {
namespace {

constexpr DType kFormats[] = {DType::e4m3, DType::e5m2};

/// The value of a byte in FP8.
double decode(std::uint8_t byte, DType format) {
  const int bits = format == DType::e4m3 ? 3 : 2, bias = format == DType::e4m3 ? 7 : 15;
  const int exponent = (byte & 0x7F) >> bits, mantissa = byte & ((1 << bits) - 1);
  const bool nan = format == DType::e4m3 ? (byte & 0x7F) == 0x7F : exponent == 31;
  if (nan) return std::nan("");
  const double magnitude = exponent == 0 ? std::ldexp(mantissa, 1 - bias - bits)
                                         : std::ldexp((1 << bits) + mantissa, exponent - bias - bits);
  return byte < 128 ? magnitude : -magnitude;
}

double largest(const Values& values) {
  double result = 0.0;
  for (const double value : values) result = std::max(result, std::abs(value));
  return result;
}

/// Powers of two, 1 among them: FP8 holds them exactly, scaled as they are.
Values powers_of_two(std::int64_t count, std::uint32_t seed) {
  Values values = random_values(count, seed);
  for (double& value : values) value = std::copysign(std::exp2(-std::floor(4.0 * std::abs(value))), value);
  return values;
}

TEST(Fp8OptionsTest, IsRefusedWhereThereIsNone) {
  const auto cpu = make_cpu_device({Precision::fp32});
  EXPECT_FALSE(cpu->get<QuantisationOps>().fits(16, 16));
  EXPECT_THROW(cpu->get<QuantisationOps>().make_scales({DType::e4m3}, {}), Error);
  EXPECT_THROW(cpu->get<QuantisationOps>().to_fp8({}, {}, {}, false), Error);
}

class Fp8Test : public ::testing::Test {
 protected:
  void SetUp() override {
    if (cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    tested_ = make_cuda_device({.precision = Precision::bf16, .fp8 = true}, 0);
    oracle_ = make_cpu_device({Precision::fp64});
  }

  /// NaN, with a scale of its own.
  Tensor poisoned(Bench& bench, DType format, const Shape& shape) {
    const std::vector<std::uint8_t> bytes(2 * static_cast<std::size_t>(element_count(shape)), 0x7F);
    const Tensor memory = bench.put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())});
    scales_.push_back(tested_->get<QuantisationOps>().make_scales({format}, states_of(bench)));
    return {memory.data, format, shape, scales_.back()->at(0)};
  }
  static Tensor states_of(Bench& bench) {
    return bench.put_as(Values(QuantisationOps::kStateSize), DType::f32, {1, QuantisationOps::kStateSize});
  }
  void renew_scales() {
    for (const auto& scales : scales_) scales->renew();
  }
  void to_fp8(const Tensor& from, const Tensor& to) {
    tested_->get<QuantisationOps>().to_fp8(from, to, Tensor{}, false);
  }
  Tensor converted(Bench& bench, DType format, const Tensor& x) {
    const Tensor y = poisoned(bench, format, x.shape);
    to_fp8(x, y);
    return y;
  }
  /// As converted(), or x itself on the oracle.
  Tensor operand(Bench& bench, DType format, const Tensor& x) {
    return bench.device().kind() == DeviceKind::cuda ? converted(bench, format, x) : x;
  }

  std::vector<std::uint8_t> bytes_of(const Tensor& tensor) const {
    std::vector<std::uint8_t> bytes(tensor.bytes());
    tested_->copy_to_host(bytes.data(), tensor.data, bytes.size());
    return bytes;
  }
  /// The elements, given that `magnitude` is the largest that the scale went by. Both copies must hold the same.
  Values take(const Tensor& tensor, double magnitude) const {
    const std::vector<std::uint8_t> bytes = bytes_of(tensor);
    const auto columns = static_cast<std::size_t>(tensor.shape.back()), count = bytes.size() / 2,
               rows = count / columns;
    const double limit = tensor.dtype == DType::e4m3 ? 448.0 : 57344.0;
    Values values(count);
    std::size_t different = 0;
    for (std::size_t i = 0; i < count; ++i) {
      values[i] = decode(bytes[i], tensor.dtype) * 2.0 * magnitude / limit;
      different += bytes[count + i % columns * rows + i / columns] == bytes[i] ? 0 : 1;
    }
    EXPECT_EQ(different, 0u) << "elements of the transposed copy";
    return values;
  }
  /// Relative error that rounding to the format may make, on average over many.
  static double tolerance(DType format) { return format == DType::e4m3 ? 0.04 : 0.08; }
  void expect_near(const Tensor& found, const Values& expected, const std::string& what) const {
    EXPECT_LE(relative_error(take(found, largest(expected)), expected), tolerance(found.dtype)) << what;
  }

  static Values values(std::int64_t count, std::uint32_t seed, bool exact) {
    return exact ? powers_of_two(count, seed) : random_values(count, seed, -2.0, 2.0);
  }
  static Tensor put(Bench& bench, const Shape& shape, std::uint32_t seed, bool exact = false) {
    return bench.put(values(element_count(shape), seed, exact), shape);
  }
  /// A gradient to add to, bf16 or f32.
  static Tensor gradient(Bench& bench, bool master, const Shape& shape) {
    const Values start = bench.rounded(random_values(element_count(shape), 99));
    return master ? bench.put_master(start, shape) : bench.put(start, shape);
  }

  void check_layer(std::int64_t rows, std::int64_t in, std::int64_t out, bool master, bool exact);
  void check_gelu(std::int64_t rows, std::int64_t in, std::int64_t hidden, bool master);
  void check_norm(const Shape& shape, float rate);

  std::unique_ptr<Device> tested_;
  std::vector<std::unique_ptr<Fp8Scales>> scales_;
  std::unique_ptr<Device> oracle_;
};

TEST_F(Fp8Test, BothCopiesAndSums) {
  const std::vector<Shape> shapes = {{16, 16}, {16, 400}, {144, 16}, {272, 144}, {1040, 768}};
  for (const Shape& shape : shapes) {
    for (const DType format : kFormats) {
      Bench bench(*tested_);
      const std::string what = fmt::format("{} x {} {}", shape[0], shape[1], name_of(format));
      const Tensor exact = put(bench, shape, 1, true), x = put(bench, shape, 2);
      EXPECT_EQ(take(converted(bench, format, exact), 1.0), bench.take(exact)) << what;
      expect_near(converted(bench, format, x), bench.take(x), what);
      for (const bool master : {false, true}) {
        const Tensor y = poisoned(bench, format, shape), sums = gradient(bench, master, {shape[1]});
        Values expected = bench.take(sums);
        const Values elements = bench.take(x);
        for (std::size_t i = 0; i < elements.size(); ++i) expected[i % expected.size()] += elements[i];
        tested_->get<QuantisationOps>().to_fp8(x, y, sums, true);
        EXPECT_LE(relative_error(bench.take(sums), expected), 1e-2) << what;
        expect_near(y, elements, what);
      }
    }
  }
}

void Fp8Test::check_layer(std::int64_t rows, std::int64_t in, std::int64_t out, bool master, bool exact) {
  const auto run = [&](Bench& bench) -> Outputs {
    const Tensor x = operand(bench, DType::e4m3, put(bench, {rows, in}, 1, exact));
    const Tensor weight = operand(bench, DType::e4m3, put(bench, {out, in}, 2, exact));
    const Tensor bias = put(bench, {out}, 3);
    const Tensor dy = operand(bench, DType::e5m2, put(bench, {rows, out}, 4, exact));
    const Tensor y = bench.poisoned({rows, out}), dx = bench.poisoned({rows, in});
    const Tensor dweight = gradient(bench, master, {out, in});
    bench.device().get<LinearOps>().linear(x, weight, bias, y);
    bench.device().get<LinearOps>().linear_backward(x, weight, dy, dx, dweight, Tensor{}, true);
    const Tensor dx_alone = bench.poisoned({rows, in}), dweight_alone = gradient(bench, master, {out, in});
    bench.device().get<LinearOps>().linear_backward(Tensor{}, weight, dy, dx_alone, Tensor{}, Tensor{}, true);
    bench.device().get<LinearOps>().linear_backward(x, weight, dy, Tensor{}, dweight_alone, Tensor{}, true);
    EXPECT_EQ(bench.take(dx_alone), bench.take(dx));
    EXPECT_EQ(bench.take(dweight_alone), bench.take(dweight));
    return {{"y", bench.take(y)}, {"dx", bench.take(dx)}, {"dweight", bench.take(dweight)}};
  };
  Bench tested(*tested_), oracle(*oracle_, DType::bf16);
  const Outputs found = run(tested), expected = run(oracle);
  for (std::size_t i = 0; i < found.size(); ++i) {
    EXPECT_LE(relative_error(found[i].second, expected[i].second), exact ? 2e-2 : 8e-2)
        << fmt::format("{} x {} x {} {}", rows, in, out, found[i].first);
  }
}

TEST_F(Fp8Test, LinearLayers) {
  for (const bool master : {false, true}) {
    for (const bool exact : {false, true}) {
      check_layer(16, 16, 16, master, exact);
      check_layer(144, 272, 400, master, exact);
      check_layer(1024, 256, 768, master, exact);
    }
  }
}

void Fp8Test::check_gelu(std::int64_t rows, std::int64_t in, std::int64_t hidden, bool master) {
  const Shape wide{rows, hidden};
  const std::string what = fmt::format("{} x {} x {}", rows, in, hidden);
  Bench tested(*tested_), oracle(*oracle_, DType::bf16);
  const auto run = [&](Bench& bench, const Tensor& y, const Tensor& dpre) -> std::pair<Tensor, Tensor> {
    const Tensor x = operand(bench, DType::e4m3, put(bench, {rows, in}, 1, true));
    const Tensor up = operand(bench, DType::e4m3, put(bench, {hidden, in}, 2, true));
    const Tensor down = operand(bench, DType::e4m3, put(bench, {in, hidden}, 3, true));
    const Tensor dy = operand(bench, DType::e5m2, put(bench, {rows, in}, 4, true));
    const Tensor pre = bench.poisoned(wide), dbias = gradient(bench, master, {hidden});
    bench.device().get<LinearOps>().linear_gelu(x, up, put(bench, {hidden}, 5), pre, y, true);
    bench.device().get<LinearOps>().linear_gelu_backward(down, dy, put(bench, wide, 6), dpre, dbias, true);
    return {pre, dbias};
  };
  const Tensor y = poisoned(tested, DType::e4m3, wide), dpre = poisoned(tested, DType::e5m2, wide);
  const Tensor oracle_y = oracle.poisoned(wide), oracle_dpre = oracle.poisoned(wide);
  const auto [pre, dbias] = run(tested, y, dpre);
  const auto [oracle_pre, oracle_dbias] = run(oracle, oracle_y, oracle_dpre);
  EXPECT_LE(relative_error(tested.take(pre), oracle.take(oracle_pre)), 2e-2) << what;
  EXPECT_LE(relative_error(tested.take(dbias), oracle.take(oracle_dbias)), 3e-2) << what;
  expect_near(y, oracle.take(oracle_y), what);
  expect_near(dpre, oracle.take(oracle_dpre), what);
  const std::vector<std::uint8_t> before = bytes_of(y);
  tested_->get<LinearOps>().gelu(pre, y);
  EXPECT_EQ(bytes_of(y), before) << what << ", once more";
}

TEST_F(Fp8Test, Gelu) {
  for (const bool master : {false, true}) {
    check_gelu(16, 16, 16, master);
    check_gelu(144, 80, 272, master);
    check_gelu(1024, 256, 768, master);
  }
}

void Fp8Test::check_norm(const Shape& shape, float rate) {
  const std::int64_t width = shape.back(), rows = shape[0] * shape[1];
  const std::string what = fmt::format("{} x {} {}", rows, width, rate);
  Bench bench(*tested_);
  const Dropout dropout{rate, 1234567890123ull, 2, 40, {bench.put_object(StepState{5}), 0}};
  const Tensor x = put(bench, shape, 1), branch = put(bench, shape, 2), weight = put(bench, {width}, 3),
               bias = put(bench, {width}, 4);
  const auto statistics = [&] { return bench.put_master(Values(static_cast<std::size_t>(2 * rows), 0.0), {rows, 2}); };
  const Tensor sum = bench.poisoned(shape), y = bench.poisoned(shape), of_y = statistics();
  tested_->get<NormOps>().add_layer_norm(x, branch, dropout, weight, bias, kEpsilon, sum, y, of_y);
  const Tensor sum_beside = bench.poisoned(shape), fp8 = poisoned(bench, DType::e4m3, shape), of_fp8 = statistics();
  tested_->get<NormOps>().add_layer_norm(x, branch, dropout, weight, bias, kEpsilon, sum_beside, fp8, of_fp8);
  EXPECT_EQ(bench.take(sum_beside), bench.take(sum)) << what;
  EXPECT_EQ(bench.take(of_fp8), bench.take(of_y)) << what;
  expect_near(fp8, bench.take(y), what);
  const std::vector<std::uint8_t> before = bytes_of(fp8);
  tested_->get<NormOps>().layer_norm(sum, weight, bias, kEpsilon, fp8, of_fp8);
  EXPECT_EQ(bytes_of(fp8), before) << what << ", of the sum";
  const Tensor fresh = poisoned(bench, DType::e4m3, shape);
  tested_->get<NormOps>().layer_norm(sum, weight, bias, kEpsilon, fresh, of_fp8);
  EXPECT_EQ(bytes_of(fresh), before) << what << ", of the sum, with a scale of its own";
}

TEST_F(Fp8Test, LayerNorm) {
  for (const std::int64_t width : {16, 208, 768, 1024, 1280, 1600, 2048, 2064}) {
    for (const float rate : {0.0f, 0.25f}) check_norm({3, 48, width}, rate);
  }
}

TEST_F(Fp8Test, RmsNorm) {
  for (const std::int64_t width : {16, 208, 2048, 2064, 3584, 8192, 8208}) {
    const Shape shape{3, 48, width};
    const std::string what = fmt::format("{}", width);
    auto& ops = tested_->get<RmsNormOps>();
    Bench bench(*tested_);
    const Dropout dropout{0.25f, 1234567890123ull, 2, 40, {bench.put_object(StepState{5}), 0}};
    const Tensor x = put(bench, shape, 1), branch = put(bench, shape, 2), weight = put(bench, {width}, 3);
    const Tensor statistics = bench.put_master(Values(144, 0.0), {144, 1});
    const Tensor sum = bench.poisoned(shape), y = bench.poisoned(shape), fp8 = poisoned(bench, DType::e4m3, shape);
    ops.add_rms_norm(x, branch, dropout, weight, kEpsilon, sum, y, statistics);
    ops.add_rms_norm(x, branch, dropout, weight, kEpsilon, bench.poisoned(shape), fp8, statistics);
    expect_near(fp8, bench.take(y), what);
    const std::vector<std::uint8_t> before = bytes_of(fp8);
    ops.rms_norm(sum, weight, kEpsilon, fp8, statistics);
    EXPECT_EQ(bytes_of(fp8), before) << what << ", of the sum";
  }
}

TEST_F(Fp8Test, Swiglu) {
  const std::vector<Shape> shapes = {{16, 16}, {144, 80}, {48, 400}, {1040, 768}};
  for (const Shape& shape : shapes) {
    const std::string what = fmt::format("{} x {}", shape[0], shape[1]);
    auto& ops = tested_->get<GatedOps>();
    Bench bench(*tested_);
    const Tensor pre = put(bench, {shape[0], 2 * shape[1]}, 1), dy = put(bench, shape, 2);
    const Tensor y = bench.poisoned(shape), dpre = bench.poisoned(pre.shape);
    const Tensor y_fp8 = poisoned(bench, DType::e4m3, shape), dpre_fp8 = poisoned(bench, DType::e5m2, pre.shape);
    ops.swiglu(pre, y);
    ops.swiglu(pre, y_fp8);
    expect_near(y_fp8, bench.take(y), what);
    ops.swiglu_backward(pre, dy, dpre, Tensor{});
    ops.swiglu_backward(pre, dy, dpre_fp8, Tensor{});
    expect_near(dpre_fp8, bench.take(dpre), what + ", gradient");
    const std::vector<std::uint8_t> before = bytes_of(y_fp8);
    ops.swiglu(pre, y_fp8);
    EXPECT_EQ(bytes_of(y_fp8), before) << what << ", once more";
  }
}

/// What is beyond twice the largest magnitude before the last renewal is cut off; a renewal without a tensor is none.
TEST_F(Fp8Test, ScalesLagBehind) {
  const Shape shape{32, 48};
  for (const DType format : kFormats) {
    scales_.clear();  // their states are memory of the last format's bench
    Bench bench(*tested_);
    const Values small = powers_of_two(element_count(shape), 1);
    Values large = small, cut = small;
    for (double& value : large) value *= 16.0;
    for (std::size_t i = 0; i < cut.size(); ++i) cut[i] = std::clamp(large[i], -2.0, 2.0);
    const Tensor x = bench.put(small, shape), wide = bench.put(large, shape), y = poisoned(bench, format, shape);
    const auto written = [&](const Tensor& from, double magnitude) {
      to_fp8(from, y);
      return take(y, magnitude);
    };
    EXPECT_EQ(written(x, 1.0), small);
    EXPECT_EQ(written(wide, 1.0), cut);
    EXPECT_EQ(written(x, 1.0), small);
    renew_scales();
    EXPECT_EQ(written(wide, 16.0), large);
    renew_scales();
    renew_scales();
    EXPECT_EQ(written(x, 16.0), small);
    renew_scales();
    EXPECT_EQ(written(wide, 1.0), cut);
    for (const auto& scales : scales_) scales->forget_magnitudes();
    renew_scales();
    EXPECT_EQ(written(wide, 1.0), cut);
  }
}

/// As when a run is resumed: scales that know the states of others write what these would have written.
TEST_F(Fp8Test, ScalesGoOnFromACopyOfTheirStates) {
  const Shape shape{32, 48};
  const Values small = powers_of_two(element_count(shape), 1);
  Values large = small;
  for (double& value : large) value *= 16.0;
  Bench bench(*tested_);
  const Tensor states = states_of(bench), copied = states_of(bench);
  const auto scales = tested_->get<QuantisationOps>().make_scales({DType::e4m3}, states);
  const auto others = tested_->get<QuantisationOps>().make_scales({DType::e4m3}, copied);
  Tensor y = poisoned(bench, DType::e4m3, shape), z = poisoned(bench, DType::e4m3, shape);
  y.scale = scales->at(0);
  z.scale = others->at(0);
  const auto go_on = [&] {
    std::vector<float> values(QuantisationOps::kStateSize);
    tested_->copy_to_host(values.data(), states.data, states.bytes());
    tested_->copy_to_device(copied.data, values.data(), copied.bytes());
    others->restored();
  };
  go_on();  // before the first use: each goes by what it is given first
  to_fp8(bench.put(small, shape), y);
  EXPECT_EQ(take(y, 1.0), small);
  scales->renew();
  go_on();
  to_fp8(bench.put(large, shape), y);
  to_fp8(bench.put(large, shape), z);
  EXPECT_EQ(bytes_of(z), bytes_of(y));
  EXPECT_NE(take(y, 1.0), large) << "cut off, as the scale goes by what came before";
}

TEST_F(Fp8Test, ZerosStayZeros) {
  Bench bench(*tested_);
  const Shape shape{16, 32};
  const Tensor x = bench.put(Values(16 * 32, 0.0), shape), y = converted(bench, DType::e5m2, x);
  EXPECT_EQ(take(y, 1.0), Values(16 * 32, 0.0));
  renew_scales();
  to_fp8(x, y);
  EXPECT_EQ(take(y, 1.0), Values(16 * 32, 0.0));
}

/// The weight changes between the steps of a graph.
TEST_F(Fp8Test, Graphs) {
  constexpr std::int64_t kRows = 144, kIn = 80, kOut = 272;
  Bench bench(*tested_), oracle(*oracle_, DType::bf16);
  const Tensor x = put(bench, {kRows, kIn}, 1, true), weight = put(bench, {kOut, kIn}, 2, true);
  const Tensor bias = put(bench, {kOut}, 3), dy = put(bench, {kRows, kOut}, 4, true);
  const Tensor y = bench.poisoned({kRows, kOut}), dx = bench.poisoned({kRows, kIn});
  const Tensor dweight = bench.poisoned({kOut, kIn}), dbias = bench.poisoned({kOut});
  const Tensor x8 = poisoned(bench, DType::e4m3, x.shape), weight8 = poisoned(bench, DType::e4m3, weight.shape);
  const Tensor dy8 = poisoned(bench, DType::e5m2, dy.shape);
  const auto step = [&] {
    to_fp8(weight, weight8);
    to_fp8(x, x8);
    tested_->get<LinearOps>().linear(x8, weight8, bias, y);
    tested_->get<QuantisationOps>().to_fp8(dy, dy8, dbias, false);
    tested_->get<LinearOps>().linear_backward(x8, weight8, dy8, dx, dweight, Tensor{}, false);
    renew_scales();
  };
  const auto results = [&](const std::function<void()>& run) {
    run();
    return std::vector<Values>{bench.take(y), bench.take(dx), bench.take(dweight), bench.take(dbias)};
  };
  EXPECT_THROW(tested_->capture(step), Error);
  step();
  const std::vector<Values> eager = results(step);
  const std::unique_ptr<Graph> graph = tested_->capture(step);
  const auto replay = [&] { graph->launch(); };
  EXPECT_EQ(results(replay), eager);
  EXPECT_EQ(results(replay), eager);

  const std::vector<std::uint8_t> other = bytes_of(put(bench, {kOut, kIn}, 7, true));
  tested_->copy_to_device(weight.data, other.data(), other.size());
  const Tensor expected = oracle.poisoned({kRows, kOut});
  oracle_->get<LinearOps>().linear(put(oracle, {kRows, kIn}, 1, true), put(oracle, {kOut, kIn}, 7, true),
                                   put(oracle, {kOut}, 3), expected);
  EXPECT_LE(relative_error(results(replay).front(), oracle.take(expected)), 2e-2);
}

TEST_F(Fp8Test, WrongTensorsThrow) {
  EXPECT_TRUE(tested_->get<QuantisationOps>().fits(16, 48));
  EXPECT_FALSE(tested_->get<QuantisationOps>().fits(17, 48));
  EXPECT_FALSE(tested_->get<QuantisationOps>().fits(16, 24));
  Bench bench(*tested_);
  EXPECT_THROW(tested_->get<QuantisationOps>().make_scales({DType::bf16}, states_of(bench)), Error);
  EXPECT_THROW(tested_->get<QuantisationOps>().make_scales({DType::e4m3}, bench.put({1.0}, {1, 1})), Error);
  const Tensor x = put(bench, {16, 32}, 1), x8 = converted(bench, DType::e4m3, x), odd = put(bench, {16, 24}, 1);
  const Tensor weight = put(bench, {48, 32}, 2), weight8 = converted(bench, DType::e4m3, weight);
  const Tensor y = bench.poisoned({16, 48});
  Tensor unscaled = x8;
  unscaled.scale = nullptr;
  EXPECT_THROW(tested_->get<QuantisationOps>().to_fp8(odd, poisoned(bench, DType::e4m3, odd.shape), Tensor{}, false),
               Error);
  EXPECT_THROW(tested_->get<QuantisationOps>().to_fp8(x, unscaled, Tensor{}, false), Error);
  EXPECT_THROW(tested_->get<QuantisationOps>().to_fp8(x, weight8, Tensor{}, false), Error);
  EXPECT_THROW(tested_->get<LinearOps>().linear(x8, weight, Tensor{}, y), Error);
  EXPECT_THROW(tested_->get<LinearOps>().linear(x, weight8, Tensor{}, y), Error);
  const Tensor dy8 = converted(bench, DType::e5m2, put(bench, {16, 48}, 3));
  EXPECT_THROW(
      tested_->get<LinearOps>().linear_backward(x8, weight8, dy8, Tensor{}, Tensor{}, put(bench, {48}, 4), false),
      Error);
  EXPECT_THROW(
      tested_->get<LinearOps>().linear_backward(x8, weight8, y, bench.poisoned({16, 32}), Tensor{}, Tensor{}, false),
      Error);
}

/// Else the scale would be 0, and all that is read with it NaN.
TEST_F(Fp8Test, AnInfiniteMaximumIsNoScale) {
  const Shape shape = {16, 32};
  for (const DType format : kFormats) {
    scales_.clear();  // their states are memory of the last format's bench
    Bench bench(*tested_);
    const Tensor x = put(bench, shape, 5);
    const Values finite = bench.take(x);
    Values diverged = finite;
    diverged[77] = std::numeric_limits<double>::infinity();
    diverged[78] = std::nan("");
    const Tensor y = converted(bench, format, x);
    renew_scales();
    to_fp8(bench.put(diverged, shape), y);
    renew_scales();
    to_fp8(x, y);
    expect_near(y, finite, name_of(format));

    const Tensor first = converted(bench, format, bench.put(diverged, shape));  // what a scale begins with
    renew_scales();
    to_fp8(x, first);
    renew_scales();
    to_fp8(x, first);
    expect_near(first, finite, name_of(format));
  }
}

TEST_F(Fp8Test, IsRefusedWithOtherPrecisions) {
  EXPECT_THROW(make_cuda_device({.precision = Precision::tf32, .fp8 = true}, 0), Error);
  const auto bf16 = make_cuda_device({.precision = Precision::bf16}, 0);
  Bench bench(*bf16);
  EXPECT_THROW(bf16->get<QuantisationOps>().make_scales({DType::e4m3}, states_of(bench)), Error);
}

}  // namespace
}  // namespace ddptrain::tests
