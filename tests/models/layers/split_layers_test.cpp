#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <numeric>

#include "models/layers/attention.h"
#include "models/layers/mlp.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/tensor_group.h"
#include "tests/models/layers/relu_feed_forward.h"
#include "tests/support/mpi_main.h"
#include "tests/support/values.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 6, kWidth = 24, kHeads = 4, kHeadSize = 6, kFeedForward = 40;
constexpr float kEpsilon = 1e-5f;

std::vector<double> values_of(const Tensor& tensor) {
  return {tensor.as<double>(), tensor.as<double>() + tensor.size()};
}

/// What this rank has of the values of a whole parameter.
std::vector<double> slice_of(const ParameterSpec& spec, const std::vector<double>& whole) {
  std::vector<double> mine(static_cast<std::size_t>(spec.size()));
  spec.slice().visit(0, spec.size(), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
    std::copy_n(whole.begin() + in_whole, count, mine.begin() + at);
  });
  return mine;
}

std::vector<double> column_sums(const std::vector<double>& rows) {
  std::vector<double> sums(kWidth, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i % kWidth] += rows[i];
  return sums;
}

/// Half of a block, or one of its slices, with all that it works on.
template <class Layer>
class Half {
 public:
  using Make = std::function<std::unique_ptr<Layer>(Device&, std::int64_t slices)>;

  Half(Device& device, const SublayerShape& shape, const TensorSlice& slice, const Make& make, TensorGroup* group)
      : device_(device),
        memory_(device, kBatch, kSequence, slice.count),
        layer_(make(device, slice.count)),
        slice_(slice) {
    const Lifetime always(0, 1);
    layer_->norm().request_input(memory_, "norm", always);
    if constexpr (std::is_same_v<Layer, Mlp>) {
      layer_->request(memory_, "layer", always, always, always, always, false);
    } else if constexpr (std::is_same_v<Layer, Attention>) {
      layer_->request(memory_, "layer", always, always, always);
    } else {
      layer_->request(memory_, "layer", always);
    }
    memory_.add("branch", kWidth, always, branch_);
    memory_.add("d_output", kWidth, always, g_.d_output);
    memory_.add("d_input", kWidth, always, g_.d_input);
    memory_.add("d_norm", std::max(kWidth, shape.out.at(1) / slice.count), always, g_.d_norm);
    g_.d_norm.shape.back() = kWidth;
    memory_.add("d_hidden", shape.in.at(0) / slice.count, always, g_.d_hidden);
    memory_.add("d_activated", shape.out.at(1) / slice.count, always, g_.d_activated);
    memory_.place();
    memory_.use(device.allocate(memory_.bytes()));
    add_parameters(shape);
    ModelTensors tensors;
    for (const ParameterSpec& spec : specs_) {
      tensors.weights.push_back(
          put(slice_of(spec, tests::random_values(element_count(spec.slice().whole), 3)), spec.shape));
      tensors.gradients.push_back(allocate(spec.shape));
    }
    tensors.group = group;
    layer_->bind(tensors, 0);
    gradients_ = tensors.gradients;
  }

  void forward(const std::vector<double>& x) {
    layer_->fit({kBatch, kSequence});
    set(layer_->norm().input, own(x));
    layer_->norm().forward();
    layer_->forward(branch_);
    layer_->norm().sum_branch(branch_);
  }

  /// `at_once`: the two halves of the backward pass.
  void run(bool at_once) {
    forward(tests::random_values(kBatch * kSequence * kWidth, 1));
    set(g_.d_output, tests::random_values(kBatch * kSequence * kWidth, 2));
    if (at_once) {
      layer_->backward(g_, Tensor{}, false, [](std::size_t) {});
    } else {
      layer_->backward_data(g_, Tensor{}, false);
      layer_->backward_weights(g_, false, [](std::size_t) {});
    }
  }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// This rank's rows of what a whole layer gives, and what it has of them.
  std::vector<double> own(const std::vector<double>& values) const {
    const std::ptrdiff_t chunks = std::ssize(BatchShape{kBatch, kSequence}.chunks(slice_.count));
    const std::ptrdiff_t count = std::ssize(values) / chunks / slice_.count;
    std::vector<double> own;
    for (std::ptrdiff_t chunk = 0; chunk < chunks; ++chunk) {
      const auto first = values.begin() + (chunk * slice_.count + slice_.index) * count;
      own.insert(own.end(), first, first + count);
    }
    return own;
  }
  std::vector<double> branch() const { return values_of(branch_); }
  std::vector<double> d_output() const { return values_of(g_.d_output); }
  std::vector<double> d_input() const { return values_of(g_.d_input); }
  std::vector<double> gradient(std::size_t i) const { return values_of(gradients_[i]); }

 private:
  static void set(const Tensor& tensor, const std::vector<double>& values) {
    std::ranges::copy(values, tensor.as<double>());
  }
  Tensor allocate(const Shape& shape) {
    return buffers_.emplace_back(device_.allocate(DType::f64, shape)).view(DType::f64, shape);
  }
  Tensor put(const std::vector<double>& values, const Shape& shape) {
    const Tensor tensor = allocate(shape);
    set(tensor, values);
    return tensor;
  }
  void add_parameters(const SublayerShape& shape) {
    add_sublayer({"norm", "in", "out"}, shape, slice_, InitialValue::normal(1), InitialValue::normal(1), specs_);
    if (layer_->parameters() == specs_.size()) return;
    add_norm("query norm", NormKind::rms, kHeadSize, specs_);
    add_norm("key norm", NormKind::rms, kHeadSize, specs_);
  }

  Device& device_;
  std::vector<ParameterSpec> specs_;
  std::vector<Buffer> buffers_;
  Activations memory_;
  std::unique_ptr<Layer> layer_;
  TensorSlice slice_;
  std::vector<Tensor> gradients_;
  SublayerGradients g_;
  Tensor branch_;
};

template <class Layer>
void expect_parts_to_be_one(const SublayerShape& shape, const typename Half<Layer>::Make& make) {
  const World& world = test_world();
  if (world.size() == 1) GTEST_SKIP() << "one rank has whole layers";
  const auto device = make_cpu_device({.precision = Precision::fp64});
  const auto communicator = make_communicator(world, *device);
  TensorGroup group(world, *communicator, *device);
  Half<Layer> whole(*device, shape, {}, make, nullptr);
  Half<Layer> part(*device, shape, {world.size(), world.rank()}, make, &group);
  for (const bool at_once : {false, true}) {
    whole.run(at_once);
    part.run(at_once);
    EXPECT_LT(tests::relative_error(part.own(part.branch()), part.own(whole.branch())), 1e-12);
    EXPECT_LT(tests::relative_error(part.d_input(), whole.d_input()), 1e-12);
    for (std::size_t i = 0; i < whole.specs().size(); ++i) {
      const bool given = part.specs()[i].name != "out.bias";  // in the whole, the norm behind the layer computes it
      const std::vector<double> expected = given ? whole.gradient(i) : column_sums(whole.d_output());
      EXPECT_LT(tests::relative_error(part.gradient(i), slice_of(part.specs()[i], expected)), 1e-12)
          << part.specs()[i].name;
    }
  }
}

void expect_slices_of_mlp(const MlpKind& kind, NormKind norm) {
  expect_parts_to_be_one<Mlp>(Mlp::shape(kWidth, kind, norm), [&](Device& device, std::int64_t slices) {
    return std::make_unique<Mlp>(device, kWidth, kind, norm, slices, kEpsilon, false);
  });
}

TEST(SplitLayers, SlicesOfAnMlpGiveWhatTheWholeGives) {
  expect_slices_of_mlp({.hidden = kFeedForward}, NormKind::layer);
  expect_slices_of_mlp({.hidden = kFeedForward, .bias = false}, NormKind::rms);
  expect_slices_of_mlp({.hidden = kFeedForward, .activation = MlpActivation::swiglu}, NormKind::layer);
  expect_slices_of_mlp({.hidden = kFeedForward, .activation = MlpActivation::swiglu, .bias = false}, NormKind::rms);
}

std::unique_ptr<ReluFeedForward> make_relu(Device& device, std::int64_t slices) {
  return std::make_unique<ReluFeedForward>(device, kWidth, kFeedForward, slices, kEpsilon);
}

TEST(SplitLayers, PartsOfTheExampleGiveWhatTheWholeGives) {
  expect_parts_to_be_one<ReluFeedForward>(Mlp::shape(kWidth, {.hidden = kFeedForward}), make_relu);
}

TEST(SplitLayers, TheExampleHasTheGradientOfItsOutput) {
  const auto device = make_cpu_device({.precision = Precision::fp64});
  Half<ReluFeedForward> half(*device, Mlp::shape(kWidth, {.hidden = kFeedForward}), {}, make_relu, nullptr);
  half.run(true);
  const std::vector<double> x = tests::random_values(kBatch * kSequence * kWidth, 1), d_output = half.d_output(),
                            d_input = half.d_input();
  const auto loss = [&](std::size_t i, double change) {
    std::vector<double> changed = x;
    changed[i] += change;
    half.forward(changed);
    const std::vector<double> branch = half.branch();
    return std::inner_product(branch.begin(), branch.end(), d_output.begin(), changed[i] * d_output[i]);
  };
  for (std::size_t i = 0; i < x.size(); i += 7)
    EXPECT_NEAR((loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6, d_input[i], 1e-4) << i;
}

TEST(SplitLayers, PartsOfAnAttentionLayerGiveWhatTheWholeGives) {
  const AttentionKind plain = {.heads = kHeads, .key_heads = kHeads, .head_size = kHeadSize};
  AttentionKind rotary = plain;
  rotary.rotary.base = 100.0;
  AttentionKind normalised = rotary;
  normalised.normalises_heads = true;
  normalised.qkv_bias = normalised.output_bias = false;
  AttentionKind wide = normalised;  // the heads together are wider than the stream
  wide.heads = wide.key_heads = 2 * kHeads;
  for (const AttentionKind& kind : {plain, rotary, normalised, wide}) {
    expect_parts_to_be_one<Attention>(Attention::shape(kWidth, kind), [&](Device& device, std::int64_t slices) {
      return std::make_unique<Attention>(device, kWidth, kind, NormKind::layer, slices, kEpsilon);
    });
  }
}

TEST(SplitLayers, SlicesOfGroupedAttentionGiveWhatTheWholeGives) {
  const AttentionKind kind = {
      .heads = 8, .key_heads = 4, .head_size = 4, .rotary = {100.0}, .qkv_bias = false, .output_bias = false};
  expect_parts_to_be_one<Attention>(
      Attention::shape(kWidth, kind, NormKind::rms), [&](Device& device, std::int64_t slices) {
        return std::make_unique<Attention>(device, kWidth, kind, NormKind::rms, slices, kEpsilon);
      });
}

/// Every element of the whole is in one part, and parts of columns, of rows and of blocks of rows are as long as each
/// other.
TEST(SplitLayers, EveryElementIsInOnePart) {
  for (const auto& [dimension, blocks] : {std::pair<std::size_t, std::int64_t>{0, 1}, {0, 3}, {1, 1}}) {
    std::vector<int> parts_with(24 * 8);
    for (std::int64_t index = 0; index < 4; ++index) {
      ParameterSpec spec{"weight", {24, 8}};
      split(spec, dimension, blocks, {4, index});
      EXPECT_EQ(spec.size(), 24 * 8 / 4);
      spec.slice().visit(0, spec.size(), [&](std::int64_t, std::int64_t in_whole, std::int64_t count) {
        for (std::int64_t i = in_whole; i < in_whole + count; ++i) ++parts_with.at(static_cast<std::size_t>(i));
      });
    }
    EXPECT_EQ(parts_with, std::vector<int>(24 * 8, 1)) << dimension << ", " << blocks;
  }
}

}  // namespace
}  // namespace ddptrain
