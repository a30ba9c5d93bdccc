// Optimizers against a plain reference that knows nothing of chunks, slices or devices.

#include <cstring>
#include <numeric>

#include "runtime/ops/reduction.h"
#include "tests/ops/bench.h"
#include "tests/ops/optimizer_case.h"

namespace ddptrain::tests {
namespace {

struct Parameter {
  std::uint32_t begin = 0;
  std::uint32_t count = 0;
  bool decays = false;
};

/// 12,000 elements with gaps between parameters, two of which are longer than a chunk.
const std::vector<Parameter> kParameters = {
    {0, 5000, true}, {5056, 1, false}, {5120, 37, true}, {5376, 4097, false}, {9728, 2048, true}};
constexpr std::int64_t kArena = 12000;
constexpr int kSteps = 5;

std::vector<UpdateChunk> make_chunks() {
  std::vector<UpdateChunk> chunks;
  for (std::uint32_t p = 0; p < kParameters.size(); ++p) {
    for (std::uint32_t done = 0; done < kParameters[p].count; done += kChunkElements) {
      chunks.push_back({.position = (kParameters[p].begin + done) / kChunkAlignment,
                        .element = done,
                        .parameter = static_cast<std::uint16_t>(p),
                        .count = static_cast<std::uint16_t>(std::min(kChunkElements, kParameters[p].count - done)),
                        .decays = kParameters[p].decays});
    }
  }
  return chunks;
}

/// The index of each parameter's first chunk, then the number of chunks.
std::vector<std::uint32_t> first_chunks() {
  std::vector<std::uint32_t> first{0};
  for (const Parameter& p : kParameters)
    first.push_back(first.back() + (p.count + kChunkElements - 1) / kChunkElements);
  return first;
}

Values gradients_of(int step) { return random_values(kArena, 100 + static_cast<std::uint32_t>(step)); }

/// One parameter, textbook formulas in double.
class Reference {
 public:
  Reference(const OptimizerSettings& settings, Values weights, bool decays)
      : s_(settings), decays_(decays), w_(std::move(weights)), m_(w_.size(), 0.0), v_(w_.size(), 0.0) {
    decay_ = decays ? static_cast<double>(s_.weight_decay) : 0.0;
  }

  void step(const Values& gradient, int step) {
    const double rate = s_.schedule.at(static_cast<std::uint64_t>(step));
    if (s_.kind == OptimizerKind::sgd) return sgd(gradient, rate);
    if (s_.kind == OptimizerKind::lion) return lion(gradient, rate);
    const Values direction = adam_direction(gradient, step + 1);
    Values update(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      update[i] = direction[i] + (s_.kind == OptimizerKind::adam ? 0.0 : decay_ * w_[i]);
    }
    const double ratio = s_.kind == OptimizerKind::lamb && decays_ ? norm(w_) / norm(update) : 1.0;
    for (std::size_t i = 0; i < w_.size(); ++i) w_[i] -= rate * ratio * update[i];
  }

  const Values& weights() const { return w_; }

 private:
  static double norm(const Values& values) {
    return std::sqrt(std::inner_product(values.begin(), values.end(), values.begin(), 0.0));
  }

  void sgd(const Values& gradient, double rate) {
    for (std::size_t i = 0; i < w_.size(); ++i) {
      m_[i] = s_.momentum * m_[i] + gradient[i] + decay_ * w_[i];
      w_[i] -= rate * m_[i];
    }
  }

  void lion(const Values& gradient, double rate) {
    const double beta1 = s_.beta1, beta2 = s_.beta2;
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double mixed = beta1 * m_[i] + (1 - beta1) * gradient[i];
      w_[i] -= rate * ((mixed > 0) - (mixed < 0) + decay_ * w_[i]);
      m_[i] = beta2 * m_[i] + (1 - beta2) * gradient[i];
    }
  }

  Values adam_direction(const Values& gradient, int t) {
    const double beta1 = s_.beta1;
    const double beta2 = s_.beta2;
    Values direction(w_.size());
    for (std::size_t i = 0; i < w_.size(); ++i) {
      const double g = gradient[i] + (s_.kind == OptimizerKind::adam ? decay_ * w_[i] : 0.0);
      m_[i] = beta1 * m_[i] + (1 - beta1) * g;
      v_[i] = beta2 * v_[i] + (1 - beta2) * g * g;
      direction[i] = m_[i] / (1 - std::pow(beta1, t)) / (std::sqrt(v_[i] / (1 - std::pow(beta2, t))) + s_.epsilon);
    }
    return direction;
  }

  OptimizerSettings s_;
  bool decays_;
  double decay_ = 0.0;
  Values w_, m_, v_;
};

class OptimizerTest : public ::testing::TestWithParam<OptimizerCase> {
 protected:
  void SetUp() override {
    const DeviceCase& device = GetParam().device;
    if (device.kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device(device);
    bench_ = std::make_unique<Bench>(*device_, GetParam().weights);
    start_ = random_values(kArena, 1);
    master_ = bench_->put_master(start_, {kArena});
    weights_ = GetParam().weights == master_.dtype ? master_ : bench_->put_as(start_, GetParam().weights, {kArena});
    first_ = bench_->put_master(Values(kArena, 0.0), {kArena});
    second_ = bench_->put_master(Values(kArena, 0.0), {kArena});
    state_ = bench_->put_object(StepState{0});
  }

  UpdateSlice slice(std::uint32_t first_chunk, std::uint32_t chunk_count) {
    return slice_of(make_chunks(), first_chunk, chunk_count);
  }

  UpdateSlice slice_of(const std::vector<UpdateChunk>& chunks, std::uint32_t first_chunk, std::uint32_t chunk_count) {
    UpdateSlice slice;
    std::vector<std::uint8_t> bytes(chunks.size() * sizeof(UpdateChunk));
    std::memcpy(bytes.data(), chunks.data(), bytes.size());
    slice.chunks = bench_->put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())}).as<UpdateChunk>() + first_chunk;
    slice.chunk_count = chunk_count;
    slice.weight_type = weights_.dtype;
    slice.gradient_type = GetParam().gradients;
    slice.state_type = master_.dtype;
    slice.weights = weights_.data;
    slice.master = master_.data;
    slice.state = {first_.data, second_.data};
    return slice;
  }

  /// Lets all arrays of the slice, which begin at position 0, begin at `position`.
  void move_to(UpdateSlice& slice, std::uint32_t position) const {
    const auto move = [&](void*& array, DType type) {
      array = static_cast<char*>(array) + std::size_t{position} * kChunkAlignment * size_of(type);
    };
    slice.position = position;
    move(slice.weights, slice.weight_type);
    move(slice.master, master_.dtype);
    move(slice.gradients, slice.gradient_type);
    for (void*& state : slice.state) move(state, slice.state_type);
  }

  UpdateSlice all_chunks() { return slice(0, static_cast<std::uint32_t>(make_chunks().size())); }

  void run(const OptimizerSettings& settings, UpdateSlice slice, int steps, float gradient_scale) {
    if (gradient_scale != 1.0f) slice.gradient_scale = bench_->put_object(gradient_scale);
    for (int step = 0; step < steps; ++step) {
      slice.gradients = put_gradients(step).data;
      if (rule_of(settings.kind).norms) slice.trust_ratios = trust_ratios(settings, slice).as<const float>();
      device_->get<OptimizerOps>().update(settings, slice, {state_, 0}, device_->compute_stream());
      device_->get<OptimizerOps>().advance(state_, 1, device_->compute_stream());
    }
  }

  const std::uint32_t* put_first_chunks() {
    const std::vector<std::uint32_t> first = first_chunks();
    std::vector<std::uint8_t> bytes(first.size() * sizeof(std::uint32_t));
    std::memcpy(bytes.data(), first.data(), bytes.size());
    return bench_->put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())}).as<const std::uint32_t>();
  }

  /// UpdateSquares of all chunks; those that are not in the slice are left at -1.
  Tensor update_squares(const OptimizerSettings& settings, const UpdateSlice& slice) {
    const auto floats = static_cast<std::int64_t>(2 * make_chunks().size());
    const Tensor squares = bench_->put_as(Values(static_cast<std::size_t>(floats), -1.0), DType::f32, {floats});
    device_->get<OptimizerOps>().update_squares(settings, slice, put_first_chunks(), squares.as<UpdateSquares>(),
                                                {state_, 0}, device_->compute_stream());
    return squares;
  }

  /// Of all parameters. Chunks that the slice does not have count as zeros.
  Tensor trust_ratios(const OptimizerSettings& settings, const UpdateSlice& slice) {
    Values squares = bench_->take(update_squares(settings, slice));
    for (double& sum : squares) sum = sum == -1.0 ? 0.0 : sum;
    const auto floats = static_cast<std::int64_t>(squares.size());
    const auto parameters = static_cast<std::int64_t>(kParameters.size());
    const Tensor ratios = bench_->put_as(Values(kParameters.size(), std::nan("")), DType::f32, {parameters});
    device_->get<OptimizerOps>().trust_ratios(bench_->put_as(squares, DType::f32, {floats}).as<UpdateSquares>(),
                                              put_first_chunks(), ratios, device_->compute_stream());
    return ratios;
  }

  Tensor put_gradients(int step) { return bench_->put_as(gradients_of(step), GetParam().gradients, {kArena}); }

  void expect_reference(const OptimizerSettings& settings, float gradient_scale) {
    const Values master = bench_->take(master_);
    const Values weights = bench_->take(weights_);
    Values expected = start_;
    for (const Parameter& p : kParameters) {
      const auto part = [&](const Values& v) { return Values(v.begin() + p.begin, v.begin() + p.begin + p.count); };
      Reference reference(settings, part(start_), p.decays);
      for (int step = 0; step < kSteps; ++step) {
        Values gradient = part(bench_->take(put_gradients(step)));
        for (double& g : gradient) g *= static_cast<double>(gradient_scale);
        reference.step(gradient, step);
      }
      std::copy(reference.weights().begin(), reference.weights().end(), expected.begin() + p.begin);
      EXPECT_LE(relative_error(moved(part(master), p), moved(reference.weights(), p)), tolerance()) << p.begin;
    }
    EXPECT_LE(relative_error(weights, expected), GetParam().device.tolerance);
    EXPECT_EQ(weights, bench_->rounded(master));
  }

  Values moved(const Values& weights, const Parameter& p) const {
    Values change(weights.size());
    for (std::size_t i = 0; i < change.size(); ++i) change[i] = weights[i] - start_[p.begin + i];
    return change;
  }
  double tolerance() const { return GetParam().device.precision == Precision::fp64 ? 1e-6 : 2e-4; }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
  Values start_;
  Tensor master_, weights_, first_, second_;
  StepState* state_ = nullptr;
};

OptimizerSettings make_settings(OptimizerKind kind, float weight_decay) {
  OptimizerSettings settings;
  settings.kind = kind;
  settings.weight_decay = weight_decay;
  settings.schedule = {LrScheduleKind::cosine, 0.01f, 2, 8};
  return settings;
}

TEST_P(OptimizerTest, EveryRuleFollowsItsFormula) {
  for (std::size_t kind = 0; kind < kOptimizerRules.size(); ++kind) {
    SCOPED_TRACE(kOptimizerRules[kind].name);
    SetUp();
    const auto rule = static_cast<OptimizerKind>(kind);
    const OptimizerSettings settings =
        make_settings(rule, rule == OptimizerKind::adamw || rule == OptimizerKind::lamb ? 0.5f : 0.1f);
    run(settings, all_chunks(), kSteps, 1.0f);
    expect_reference(settings, 1.0f);
  }
}

/// The square of the one before last overflows in f32 alone.
TEST_P(OptimizerTest, NotesTheFirstParameterWhoseGradientIsNotFinite) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const double value : {std::nan(""), infinity, -infinity, 1e25, 1.0}) {
    const bool finite = value == 1.0 || (value == 1e25 && GetParam().gradients == DType::f64);
    for (std::size_t kind = 0; kind < kOptimizerRules.size(); ++kind) {
      SetUp();
      Values gradients = gradients_of(0);
      gradients[5120 + 36] = value;   // the third parameter
      gradients[9728 + 100] = value;  // the last one
      UpdateSlice all = all_chunks();
      all.gradients = bench_->put_as(gradients, GetParam().gradients, {kArena}).data;
      all.nonfinite = bench_->put_object(NonFinite{});
      const OptimizerSettings settings = make_settings(static_cast<OptimizerKind>(kind), 0.1f);
      for (int i = 0; i < 2; ++i) {  // the second step changes nothing in what is noted
        device_->get<OptimizerOps>().update(settings, all, {state_, 7}, device_->compute_stream());
        device_->get<OptimizerOps>().advance(state_, 1, device_->compute_stream());
      }
      const NonFinite found = bench_->take_object(all.nonfinite);
      EXPECT_EQ(found.first, finite ? 0u : NonFinite::place(7, 2)) << value << ", " << kOptimizerRules[kind].name;
    }
  }
}

TEST_P(OptimizerTest, AScaleThatIsNanLeavesAllAsItIs) {
  for (std::size_t kind = 0; kind < kOptimizerRules.size(); ++kind) {
    SetUp();
    const OptimizerSettings settings = make_settings(static_cast<OptimizerKind>(kind), 0.1f);
    run(settings, all_chunks(), 2, 1.0f);
    const auto taken = [&] {
      return std::vector<Values>{bench_->take(weights_), bench_->take(master_), bench_->take(first_),
                                 bench_->take(second_)};
    };
    const auto before = taken();
    run(settings, all_chunks(), 1, std::nanf(""));
    EXPECT_EQ(taken(), before) << kOptimizerRules[kind].name;
  }
}

bool is_matrix(std::size_t parameter) { return parameter == 0 || parameter == 3; }

/// For muon: some parameters are matrices.
std::vector<UpdateChunk> chunks_with_matrices() {
  std::vector<UpdateChunk> chunks = make_chunks();
  for (UpdateChunk& chunk : chunks) chunk.of_matrix = is_matrix(chunk.parameter);
  return chunks;
}

/// What is done to the whole matrix in between is left out: the direction is the gradient with momentum.
TEST_P(OptimizerTest, MuonMovesMatricesByMomentumAndTheOthersAsAdamW) {
  const OptimizerSettings settings = make_settings(OptimizerKind::muon, 0.5f);
  const std::vector<UpdateChunk> chunks = chunks_with_matrices();
  UpdateSlice all = slice_of(chunks, 0, static_cast<std::uint32_t>(chunks.size()));
  all.gradient_scale = bench_->put_object(0.5f);
  OptimizerOps& ops = device_->get<OptimizerOps>();
  const std::vector<Parameter>& parameters = kParameters;
  std::vector<Reference> others;
  for (const Parameter& p : parameters) {
    others.emplace_back(settings, Values(start_.begin() + p.begin, start_.begin() + p.begin + p.count), p.decays);
  }
  Values expected = bench_->take(master_);
  Values m(kArena, 0.0);
  for (int step = 0; step < kSteps; ++step) {
    const Tensor gradients = put_gradients(step);
    const Values before = bench_->take(gradients);
    all.gradients = gradients.data;
    ops.add_momentum(settings, all, {state_, 0}, device_->compute_stream());
    const Values directions = bench_->take(gradients);
    ops.update(settings, all, {state_, 0}, device_->compute_stream());
    ops.advance(state_, 1, device_->compute_stream());
    const double rate = settings.schedule.at(static_cast<std::uint64_t>(step));
    for (std::size_t p = 0; p < parameters.size(); ++p) {
      Values scaled;
      Values wanted;
      for (std::size_t i = parameters[p].begin; i < parameters[p].begin + parameters[p].count; ++i) {
        scaled.push_back(0.5 * before[i]);
        if (!is_matrix(p)) {
          ASSERT_EQ(directions[i], before[i]) << i;
          continue;
        }
        m[i] = settings.muon_momentum * m[i] + scaled.back();
        wanted.push_back(scaled.back() + settings.muon_momentum * m[i]);
        expected[i] -= rate * (directions[i] + (parameters[p].decays ? 0.5 * expected[i] : 0.0));
      }
      if (!is_matrix(p)) others[p].step(scaled, step);
      if (!is_matrix(p)) std::ranges::copy(others[p].weights(), expected.begin() + parameters[p].begin);
      const Values taken(directions.begin() + parameters[p].begin,
                         directions.begin() + parameters[p].begin + parameters[p].count);
      if (is_matrix(p)) {
        EXPECT_LE(relative_error(taken, wanted), GetParam().gradients == DType::bf16 ? 4e-3 : 1e-6) << p;
      }
    }
  }
  const Values master = bench_->take(master_);
  for (const Parameter& p : parameters) {
    const auto part = [&](const Values& v) { return Values(v.begin() + p.begin, v.begin() + p.begin + p.count); };
    EXPECT_LE(relative_error(moved(part(master), p), moved(part(expected), p)), tolerance()) << p.begin;
  }
  EXPECT_EQ(bench_->take(weights_), bench_->rounded(master));
}

TEST_P(OptimizerTest, MomentumOfGradientsThatAreNotFiniteIsNotAddedAndNoted) {
  const OptimizerSettings settings = make_settings(OptimizerKind::muon, 0.1f);
  const std::vector<UpdateChunk> chunks = chunks_with_matrices();
  UpdateSlice all = slice_of(chunks, 0, static_cast<std::uint32_t>(chunks.size()));
  Values gradients = gradients_of(0);
  gradients[5376 + 4000] = std::nan("");  // the fourth parameter, a matrix
  const Tensor tensor = bench_->put_as(gradients, GetParam().gradients, {kArena});
  const Values momentum = bench_->take(first_);
  all.gradients = tensor.data;
  all.gradient_scale = bench_->put_object(std::nanf(""));
  all.nonfinite = bench_->put_object(NonFinite{});
  device_->get<OptimizerOps>().add_momentum(settings, all, {state_, 7}, device_->compute_stream());
  EXPECT_EQ(bench_->take_object(all.nonfinite).first, NonFinite::place(7, 3));
  EXPECT_EQ(bench_->take(first_), momentum);
}

/// All elements of a parameter are alike: the number of elements and of chunks does not matter. The first step of AdamW
/// has direction 1, 0 or -1.
TEST_P(OptimizerTest, LambMultipliesTheStepByTheRatioOfTheNorms) {
  struct Case {
    double weight, gradient, decay, ratio;  // of the three parameters that decay
  };
  const double rate = 0.125;
  const auto sign = [](double gradient) { return static_cast<double>(gradient > 0.0) - (gradient < 0.0); };
  for (const Case& c : {Case{2, -3, 0.25, 4},         // r = -1 + 0.5
                        Case{2, 0.5, 0.25, 4.0 / 3},  // r = 1 + 0.5
                        Case{-8, 0, 0.25, 4},         // r = 0 - 2
                        Case{8, 1, 0, 8},             // r = 1: parameters that could decay are adapted
                        Case{0, 1, 0.25, 1},          // no weights
                        Case{4, 0, 0, 1}}) {          // no update
    SetUp();
    OptimizerSettings settings = make_settings(OptimizerKind::lamb, static_cast<float>(c.decay));
    settings.schedule = {LrScheduleKind::constant, static_cast<float>(rate), 0, 0};
    const Values start(kArena, c.weight);
    master_ = bench_->put_master(start, {kArena});
    weights_ = GetParam().weights == master_.dtype ? master_ : bench_->put_as(start, weights_.dtype, {kArena});
    UpdateSlice all = all_chunks();
    all.gradients = bench_->put_as(Values(kArena, c.gradient), GetParam().gradients, {kArena}).data;
    const Tensor ratios = trust_ratios(settings, all);
    EXPECT_EQ(bench_->take(first_), Values(kArena, 0.0)) << "no state has changed";
    all.trust_ratios = ratios.as<const float>();
    device_->get<OptimizerOps>().update(settings, all, {state_, 0}, device_->compute_stream());
    const Values found = bench_->take(ratios);
    const Values master = bench_->take(master_);
    for (std::size_t p = 0; p < kParameters.size(); ++p) {
      const double ratio = kParameters[p].decays ? c.ratio : 1.0;
      EXPECT_NEAR(found[p], ratio, 1e-6 * ratio) << p;
      const double update = sign(c.gradient) + (kParameters[p].decays ? c.decay * c.weight : 0.0);
      for (const std::size_t i : {kParameters[p].begin, kParameters[p].begin + kParameters[p].count - 1}) {
        EXPECT_NEAR(master[i], c.weight - rate * ratio * update, 1e-5) << c.weight << ", " << c.gradient << ": " << p;
      }
    }
  }
}

TEST_P(OptimizerTest, SquaresOfUpdatesAreOfScaledGradientsAndDoNotDependOnTheSlice) {
  const OptimizerSettings settings = make_settings(OptimizerKind::lamb, 0.5f);
  run(settings, all_chunks(), 2, 1.0f);
  const auto squares_of = [&](std::uint32_t begin, std::uint32_t count) {
    UpdateSlice part = slice(begin, count);
    part.gradients = put_gradients(2).data;
    return bench_->take(update_squares(settings, part));
  };
  const auto chunks = static_cast<std::uint32_t>(make_chunks().size());
  const Values whole = squares_of(0, chunks);
  Values halves = bench_->take(put_gradients(2));
  for (double& gradient : halves) gradient *= 0.5;
  UpdateSlice doubled = all_chunks();
  doubled.gradients = bench_->put_as(halves, GetParam().gradients, {kArena}).data;
  EXPECT_NE(bench_->take(update_squares(settings, doubled)), whole);
  doubled.gradient_scale = bench_->put_object(2.0f);
  EXPECT_EQ(bench_->take(update_squares(settings, doubled)), whole);
  for (std::uint32_t i = 0; i < chunks; ++i) {
    const bool decays = make_chunks()[i].decays != 0;
    EXPECT_EQ(whole[2 * i] != -1.0 && whole[2 * i + 1] != -1.0, decays) << i;
    const Values single = squares_of(i, 1);
    for (std::uint32_t k = 0; k < 2 * chunks; ++k) EXPECT_EQ(single[k], k / 2 == i ? whole[k] : -1.0) << i << ", " << k;
  }
}

/// The ratio of the second parameter is of 3000 chunks. The third has no weights, the fourth no update.
TEST_P(OptimizerTest, RatiosAreOfAllChunksOfTheirParameterAlone) {
  Values squares{9, 1, 16, 24};
  for (int chunk = 0; chunk < 3000; ++chunk) squares.insert(squares.end(), {0.5, 2});
  squares.insert(squares.end(), {0, 3, 3, 0});
  std::vector<std::uint8_t> bytes(5 * sizeof(std::uint32_t));
  std::memcpy(bytes.data(), std::array<std::uint32_t, 5>{0, 2, 3002, 3003, 3004}.data(), bytes.size());
  const auto* first = bench_->put_bytes(bytes, {static_cast<std::int64_t>(bytes.size())}).as<const std::uint32_t>();
  const Tensor sums = bench_->put_as(squares, DType::f32, {static_cast<std::int64_t>(squares.size())});
  const Tensor ratios = bench_->put_as(Values(4, std::nan("")), DType::f32, {4});
  device_->get<OptimizerOps>().trust_ratios(sums.as<UpdateSquares>(), first, ratios, device_->compute_stream());
  EXPECT_EQ(bench_->take(ratios), (Values{1, 0.5, 1, 1}));
}

TEST_P(OptimizerTest, UnknownRulesAndMissingSlotsAreErrors) {
  UpdateSlice one = slice(0, 1);
  one.gradients = put_gradients(0).data;
  const auto update = [&](OptimizerKind kind) {
    device_->get<OptimizerOps>().update(make_settings(kind, 0.1f), one, {state_, 0}, device_->compute_stream());
  };
  EXPECT_THROW(update(static_cast<OptimizerKind>(kOptimizerRules.size())), Error);
  one.state[1] = nullptr;
  EXPECT_THROW(update(OptimizerKind::adam), Error);
  EXPECT_NO_THROW(update(OptimizerKind::lion));
}

TEST_P(OptimizerTest, ScalesTheGradient) {
  const OptimizerSettings settings = make_settings(OptimizerKind::sgd, 0.0f);
  run(settings, all_chunks(), kSteps, 0.25f);
  expect_reference(settings, 0.25f);
}

/// A second slice leaves the first one and the gaps alone; two slices do what one does.
TEST_P(OptimizerTest, UpdatesExactlyItsSlice) {
  const OptimizerSettings settings = make_settings(OptimizerKind::adamw, 0.1f);
  const auto chunk_count = static_cast<std::uint32_t>(make_chunks().size());
  constexpr std::uint32_t kSecond = 4;  // the first chunk of the third parameter
  run(settings, slice(kSecond, chunk_count - kSecond), 1, 1.0f);
  const Values before = bench_->take(bench_->put_master(start_, {kArena}));
  const Values after = bench_->take(master_);
  std::vector<bool> covered(kArena, false);
  for (std::size_t p = 2; p < kParameters.size(); ++p) {
    std::fill_n(covered.begin() + kParameters[p].begin, kParameters[p].count, true);
  }
  for (std::size_t i = 0; i < after.size(); ++i) EXPECT_EQ(after[i] != before[i], covered[i]) << i;
}

/// The same chunks, in arrays that begin at the first of them.
TEST_P(OptimizerTest, ArraysBeginAtThePositionOfTheirSlice) {
  const std::vector<UpdateChunk> chunks = chunks_with_matrices();
  const auto chunk_count = static_cast<std::uint32_t>(chunks.size());
  constexpr std::uint32_t kSecond = 4;  // the first chunk of the third parameter
  const OptimizerSettings settings = make_settings(OptimizerKind::lamb, 0.1f);
  const auto results_of = [&](bool moves) {
    SetUp();
    UpdateSlice part = slice_of(chunks, kSecond, chunk_count - kSecond);
    const Tensor gradients = put_gradients(0);
    part.gradients = gradients.data;
    if (moves) move_to(part, chunks[kSecond].position);
    const Tensor squares = bench_->put_as(Values(chunk_count, -1.0), DType::f32, {chunk_count});
    device_->get<ReductionOps>().chunk_squares({part}, put_first_chunks(), squares.as<float>());
    auto& ops = device_->get<OptimizerOps>();
    ops.add_momentum(make_settings(OptimizerKind::muon, 0.1f), part, {state_, 0}, device_->compute_stream());
    const Tensor of_updates = update_squares(settings, part);
    ops.update(settings, part, {state_, 0}, device_->compute_stream());
    std::vector<Values> results;
    for (const Tensor& array : {squares, of_updates, gradients, master_, weights_, first_, second_}) {
      results.push_back(bench_->take(array));
    }
    return results;
  };
  EXPECT_EQ(results_of(true), results_of(false));
}

TEST_P(OptimizerTest, WritesTheSameWeightsToPeers) {
  if (GetParam().device.kind == DeviceKind::cpu) GTEST_SKIP() << "ranks on CPUs have no peers";
  const OptimizerSettings settings = make_settings(OptimizerKind::adamw, 0.1f);
  const Tensor first = bench_->put_as(bench_->take(weights_), weights_.dtype, {kArena});
  const Tensor second = bench_->put_as(bench_->take(weights_), weights_.dtype, {kArena});
  const Values before = bench_->take(weights_);
  UpdateSlice all = all_chunks();
  all.peer_weights = {first.data, second.data};
  run(settings, all, 1, 1.0f);
  EXPECT_NE(bench_->take(weights_), before);
  EXPECT_EQ(bench_->take(first), bench_->take(weights_));
  EXPECT_EQ(bench_->take(second), bench_->take(weights_));
}

/// Every device rounds the master weights to the nearest bf16.
TEST_P(OptimizerTest, RoundsToTheNearestBf16) {
  if (GetParam().weights != DType::bf16) GTEST_SKIP() << "only bf16 weights are rounded";
  for (const OptimizerKind kind : {OptimizerKind::adamw, OptimizerKind::lion}) {
    SetUp();
    run(make_settings(kind, 0.1f), all_chunks(), kSteps, 1.0f);
    const Values master = bench_->take(master_);
    const Values weights = bench_->take(weights_);
    for (const auto& parameter : kParameters) {
      for (std::uint32_t i = parameter.begin; i < parameter.begin + parameter.count; ++i) {
        ASSERT_EQ(weights[i], rounded_to(DType::bf16, master[i])) << i;
      }
    }
  }
}

/// Each chunk has its place, whatever slice it is in; others are left alone.
TEST_P(OptimizerTest, SquaresOfChunksDoNotDependOnTheSlice) {
  const std::vector<UpdateChunk> chunks = make_chunks();
  const auto chunk_count = static_cast<std::uint32_t>(chunks.size());
  ASSERT_EQ(first_chunks().back(), chunk_count);
  const std::uint32_t* places = put_first_chunks();
  const Tensor gradients = put_gradients(0);
  const Values values = bench_->take(gradients);
  const auto squares_of = [&](std::uint32_t begin, std::uint32_t count) {
    const Tensor squares = bench_->put_as(Values(chunk_count, -1.0), DType::f32, {chunk_count});
    UpdateSlice part = slice(begin, count);
    part.gradients = gradients.data;
    device_->get<ReductionOps>().chunk_squares({part}, places, squares.as<float>());
    return bench_->take(squares);
  };
  const Values whole = squares_of(0, chunk_count);
  std::vector<UpdateSlice> singles;  // one for each chunk, in another order, and more than one launch takes
  for (std::uint32_t i = 0; i < 150 + chunk_count; ++i) {
    singles.push_back(slice(i < 150 ? 0 : chunk_count - 1 - (i - 150), i < 150 ? 0 : 1));
    singles.back().gradients = gradients.data;
  }
  const Tensor squares_apart = bench_->put_as(Values(chunk_count, -1.0), DType::f32, {chunk_count});
  device_->get<ReductionOps>().chunk_squares(singles, places, squares_apart.as<float>());
  const Values apart = bench_->take(squares_apart);
  for (std::uint32_t i = 0; i < chunk_count; ++i) {
    double expected = 0.0;
    const std::size_t begin = chunks[i].offset_from(0);
    for (std::uint32_t k = 0; k < chunks[i].count; ++k) expected += values[begin + k] * values[begin + k];
    EXPECT_NEAR(whole[i], expected, 1e-5 * expected) << i;
    EXPECT_EQ(apart[i], whole[i]) << i;
    const Values single = squares_of(i, 1);
    for (std::uint32_t k = 0; k < chunk_count; ++k) EXPECT_EQ(single[k], k == i ? whole[k] : -1.0) << i << ", " << k;
  }
}

TEST_P(OptimizerTest, AdvanceCountsSteps) {
  StepState* state = bench_->put_object(StepState{(1ull << 32) - 1});
  device_->get<OptimizerOps>().advance(state, 1, device_->compute_stream());
  device_->get<OptimizerOps>().advance(state, 4, device_->compute_stream());
  EXPECT_EQ(bench_->take_object(state).step, (1ull << 32) + 4);
}

INSTANTIATE_TEST_SUITE_P(Devices, OptimizerTest, ::testing::ValuesIn(optimizer_cases()),
                         [](const auto& param) { return param.param.device.name; });

TEST(LrSchedule, WarmsUpLinearlyAndReachesZero) {
  struct Rate {
    LrSchedule schedule;
    std::uint64_t step;
    double rate;
  };
  const LrSchedule constant{LrScheduleKind::constant, 0.8f, 4, 0}, linear{LrScheduleKind::linear, 1.0f, 2, 12},
      cosine{LrScheduleKind::cosine, 1.0f, 0, 8};
  const std::vector<Rate> rates = {
      {constant, 0, 0.2},   {constant, 1, 0.4}, {constant, 3, 0.8}, {constant, 4, 0.8}, {constant, 1000000, 0.8},
      {linear, 2, 1.0},     {linear, 7, 0.5},   {linear, 12, 0.0},  {linear, 13, 0.0},  {cosine, 0, 1.0},
      {cosine, 2, 0.85355}, {cosine, 4, 0.5},   {cosine, 8, 0.0},   {cosine, 100, 0.0}};
  for (const auto& [schedule, step, rate] : rates)
    EXPECT_NEAR(schedule.at(step), rate, 1e-5) << static_cast<int>(schedule.kind) << ", step " << step;
}

}  // namespace
}  // namespace ddptrain::tests
