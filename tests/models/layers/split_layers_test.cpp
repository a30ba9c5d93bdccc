#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/tensor_group.h"
#include "tests/models/layers/relu_feed_forward.h"
#include "tests/support/mpi_main.h"
#include "tests/support/values.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kBatch = 2, kSequence = 6, kWidth = 24, kHeads = 4, kFeedForward = 40;
constexpr float kEpsilon = 1e-5f;

std::vector<double> values_of(const Tensor& tensor) {
  return {tensor.as<double>(), tensor.as<double>() + tensor.size()};
}

/// What this rank has of the values of a whole parameter.
std::vector<double> part_of(const ParameterSpec& spec, const std::vector<double>& whole) {
  std::vector<double> mine(static_cast<std::size_t>(spec.size()));
  spec.part().visit(0, spec.size(), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
    std::copy_n(whole.begin() + in_whole, count, mine.begin() + at);
  });
  return mine;
}

std::vector<double> column_sums(const std::vector<double>& rows) {
  std::vector<double> sums(kWidth, 0.0);
  for (std::size_t i = 0; i < rows.size(); ++i) sums[i % kWidth] += rows[i];
  return sums;
}

/// Half of a block, or one of its parts, with all that it works on.
template <class Layer>
class Half {
 public:
  using Make = std::function<Layer(Device&, std::int64_t parts)>;

  Half(Device& device, const SublayerShape& shape, const LayerPart& part, const Make& make, TensorGroup* group)
      : memory_(device, kBatch, kSequence, part.count), layer_(make(device, part.count)), part_(part) {
    add_sublayer({"norm", "in", "out"}, shape, part, InitialValue::normal(1), InitialValue::normal(1), specs_);
    layer_.norm().input = memory_.part(kWidth);
    layer_.allocate(memory_);
    if constexpr (std::is_same_v<Layer, FeedForward>) layer_.allocate_hidden(memory_);
    ModelTensors tensors;
    for (const ParameterSpec& spec : specs_) {
      tensors.weights.push_back(
          put(part_of(spec, tests::random_values(element_count(spec.part().whole), 3)), spec.shape));
      tensors.gradients.push_back(memory_.allocate(DType::f64, spec.shape));
    }
    tensors.group = group;
    layer_.bind(tensors, 0);
    gradients_ = tensors.gradients;
    branch_ = memory_.activation(kWidth);
    g_.dout = memory_.activation(kWidth);
    g_.din = memory_.activation(kWidth);
    g_.dnorm = memory_.activation(kWidth);
    g_.dinner = memory_.activation(shape.in.at(0) / part.count);
  }

  void forward(const std::vector<double>& x) {
    layer_.fit({kBatch, kSequence});
    set(layer_.norm().input, own(x));
    layer_.norm().forward();
    layer_.forward(branch_);
  }

  /// `at_once`: the two halves of the backward pass.
  void run(bool at_once) {
    forward(tests::random_values(kBatch * kSequence * kWidth, 1));
    set(g_.dout, tests::random_values(kBatch * kSequence * kWidth, 2));
    if (at_once) {
      layer_.backward(g_, Tensor{}, false, [](std::size_t) {});
    } else {
      layer_.backward_data(g_, Tensor{}, false);
      layer_.backward_weights(g_, false, [](std::size_t) {});
    }
  }

  const std::vector<ParameterSpec>& specs() const { return specs_; }
  /// This rank's rows of what a whole layer gives, and what it has of them.
  std::vector<double> own(const std::vector<double>& values) const {
    const auto count = static_cast<std::ptrdiff_t>(values.size()) / part_.count;
    return {values.begin() + part_.index * count, values.begin() + (part_.index + 1) * count};
  }
  std::vector<double> branch() const { return values_of(branch_); }
  std::vector<double> dout() const { return values_of(g_.dout); }
  std::vector<double> din() const { return values_of(g_.din); }
  std::vector<double> gradient(std::size_t i) const { return values_of(gradients_[i]); }

 private:
  static void set(const Tensor& tensor, const std::vector<double>& values) {
    std::ranges::copy(values, tensor.as<double>());
  }
  Tensor put(const std::vector<double>& values, const Shape& shape) {
    const Tensor tensor = memory_.allocate(DType::f64, shape);
    set(tensor, values);
    return tensor;
  }

  std::vector<ParameterSpec> specs_;
  Activations memory_;
  Layer layer_;
  LayerPart part_;
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
    EXPECT_LT(tests::relative_error(part.din(), whole.din()), 1e-12);
    for (std::size_t i = 0; i < whole.specs().size(); ++i) {
      const bool given = part.specs()[i].name != "out.bias";  // else, in the whole, by the norm behind the layer
      const std::vector<double> expected = given ? whole.gradient(i) : column_sums(whole.dout());
      EXPECT_LT(tests::relative_error(part.gradient(i), part_of(part.specs()[i], expected)), 1e-12)
          << part.specs()[i].name;
    }
  }
}

TEST(SplitLayers, PartsOfAFeedForwardLayerGiveWhatTheWholeGives) {
  expect_parts_to_be_one<FeedForward>(FeedForward::shape(kWidth, kFeedForward), [](Device& device, std::int64_t parts) {
    return FeedForward(device, kWidth, kFeedForward, parts, kEpsilon, false);
  });
}

ReluFeedForward make_relu(Device& device, std::int64_t parts) {
  return ReluFeedForward(device, kWidth, kFeedForward, parts, kEpsilon);
}

TEST(SplitLayers, PartsOfTheExampleGiveWhatTheWholeGives) {
  expect_parts_to_be_one<ReluFeedForward>(FeedForward::shape(kWidth, kFeedForward), make_relu);
}

TEST(SplitLayers, TheExampleHasTheGradientOfItsOutput) {
  const auto device = make_cpu_device({.precision = Precision::fp64});
  Half<ReluFeedForward> half(*device, FeedForward::shape(kWidth, kFeedForward), {}, make_relu, nullptr);
  half.run(true);
  const std::vector<double> x = tests::random_values(kBatch * kSequence * kWidth, 1), dout = half.dout(),
                            din = half.din();
  const auto loss = [&](std::size_t i, double change) {
    std::vector<double> changed = x;
    changed[i] += change;
    half.forward(changed);
    const std::vector<double> branch = half.branch();
    return std::inner_product(branch.begin(), branch.end(), dout.begin(), changed[i] * dout[i]);
  };
  for (std::size_t i = 0; i < x.size(); i += 7) EXPECT_NEAR((loss(i, 1e-6) - loss(i, -1e-6)) / 2e-6, din[i], 1e-4) << i;
}

TEST(SplitLayers, PartsOfAnAttentionLayerGiveWhatTheWholeGives) {
  expect_parts_to_be_one<Attention>(Attention::shape(kWidth), [](Device& device, std::int64_t parts) {
    return Attention(device, kWidth, kHeads, parts, kEpsilon);
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
      spec.part().visit(0, spec.size(), [&](std::int64_t, std::int64_t in_whole, std::int64_t count) {
        for (std::int64_t i = in_whole; i < in_whole + count; ++i) ++parts_with.at(static_cast<std::size_t>(i));
      });
    }
    EXPECT_EQ(parts_with, std::vector<int>(24 * 8, 1)) << dimension << ", " << blocks;
  }
}

}  // namespace
}  // namespace ddptrain
