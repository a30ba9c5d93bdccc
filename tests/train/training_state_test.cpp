#include "runtime/train/step/store/training_state.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>

#include "runtime/core/error.h"
#include "tests/train/model_around.h"
#include "tests/train/rig.h"

namespace ddptrain {
namespace {

const ImageData& few_images() {
  static const ImageData images = make_synthetic(100, 7);
  return images;
}

/// The CNN with a buffer: a number of training samples, which raises the gradient. Counts in host memory (CPU).
class CountingCnn final : public tests::ModelAround {
 public:
  using ModelAround::ModelAround;

  std::vector<BufferSpec> buffers() const override { return {{"seen", {2, 3}, DType::f32, 0.25f}}; }
  void bind(const ModelTensors& tensors) override {
    ModelAround::bind(tensors);
    seen_ = tensors.buffers.at(0);
  }
  void restored() override { ++restored_; }
  void begin(const MicroBatch& batch) override {
    MicroBatch raised = batch;
    if (batch.training) seen_.as<float>()[5] += static_cast<float>(batch.slice.count);
    raised.gradient_scale *= 1.0f + seen_.as<float>()[5];
    ModelAround::begin(raised);
  }

  Tensor seen() const { return seen_; }
  int times_restored() const { return restored_; }

 private:
  Tensor seen_;
  int restored_ = 0;
};

TrainerOptions options_with(std::uint64_t seed, Zero zero) {
  TrainerOptions options;
  options.batch = 12 / test_world().size();
  options.grad_accum = 2;
  options.seed = seed;
  options.bucket_bytes = 100000;
  options.last_bucket_bytes = 10000;
  options.clip_norm = 1.0f;
  options.zero = zero;
  return options;
}

struct CountedRun {
  CountingCnn* model;
  std::unique_ptr<Trainer> trainer;

  CountedRun(Rig& rig, const TrainerOptions& options) {
    auto counting = std::make_unique<CountingCnn>(rig.cnn(options, few_images()));
    model = counting.get();
    trainer = rig.trainer(options, few_images(), std::move(counting));
  }
};

using Copy = std::map<std::string, std::vector<std::vector<char>>>;

Copy copy_out(const TrainingState& state, Device& device) {
  Copy copy;
  for (const StateArray& array : state.arrays()) {
    auto& pieces = copy[array.name];
    for (const StateArray::Piece& piece : array.pieces) {
      pieces.emplace_back(piece.values.bytes());
      device.copy_to_host(pieces.back().data(), piece.values.data, piece.values.bytes());
    }
  }
  return copy;
}

void copy_in(const Copy& copy, Trainer& trainer, Device& device) {
  for (const StateArray& array : trainer.state().arrays()) {
    for (std::size_t i = 0; i < array.pieces.size(); ++i) {
      const auto& bytes = copy.at(array.name).at(i);
      ASSERT_EQ(bytes.size(), array.pieces[i].values.bytes()) << array.name;
      device.copy_to_device(array.pieces[i].values.data, bytes.data(), bytes.size());
    }
  }
  trainer.restored();
}

TEST(TrainingState, ARunGoesOnWithTheSameBitsFromACopyOfAllItsArrays) {
  for (const Zero zero : kZeroStages) {
    Rig rig(DeviceKind::cpu, Precision::fp32);
    const TrainerOptions options = options_with(3, zero);
    CountedRun run(rig, options);
    run.trainer->run(3);
    const Copy copy = copy_out(run.trainer->state(), *rig.device);
    run.trainer->run(4);
    const Copy expected = copy_out(run.trainer->state(), *rig.device);
    copy_in(copy, *run.trainer, *rig.device);
    EXPECT_EQ(run.model->times_restored(), 1);
    run.trainer->run(4);
    EXPECT_EQ(copy_out(run.trainer->state(), *rig.device), expected) << "zero " << static_cast<int>(zero);

    CountedRun other(rig, options);  // one that has trained otherwise before
    other.trainer->run(1);
    EXPECT_NE(copy_out(other.trainer->state(), *rig.device), copy);
    copy_in(copy, *other.trainer, *rig.device);
    other.trainer->run(4);
    EXPECT_EQ(copy_out(other.trainer->state(), *rig.device), expected) << "zero " << static_cast<int>(zero);
  }
}

TEST(TrainingState, NamesEveryArrayOnceWithItsShapeAndPlacement) {
  for (const Zero zero : kZeroStages) {
    Rig rig(DeviceKind::cpu, Precision::fp32);
    const CountedRun run(rig, options_with(3, zero));
    const std::vector<StateArray> arrays = run.trainer->state().arrays();
    const auto placement = [&](Zero from) {
      return zero >= from && test_world().size() > 1 ? Placement::sharded : Placement::replicated;
    };
    std::string names;
    std::map<std::string, const StateArray*> by_name;
    for (const StateArray& array : arrays) {
      EXPECT_TRUE(by_name.emplace(array.name, &array).second) << array.name << " comes twice";
      names += array.name + '\n';
    }
    for (const std::string& other : test_world().all_gather(names)) EXPECT_EQ(other, names);
    EXPECT_EQ(arrays.size(), 1 + 3 * run.trainer->arena().specs().size() + 1);  // step; weights, two moments; buffer
    EXPECT_EQ(by_name.at("step")->placement, Placement::replicated);
    EXPECT_EQ(by_name.at("buffer/seen")->placement, Placement::per_rank);
    EXPECT_EQ(by_name.at("buffer/seen")->shape(), (Shape{2, 3}));
    EXPECT_EQ(by_name.at("weight/fc1.weight")->shape(), (Shape{128, 9216}));
    EXPECT_EQ(by_name.at("weight/fc1.weight")->placement, placement(Zero::weights));
    EXPECT_EQ(by_name.at("slot_1/fc1.weight")->placement, placement(Zero::state));
  }
}

/// Over all ranks, every element of a sharded array is in one piece.
TEST(TrainingState, PiecesCoverTheirArrays) {
  for (const Zero zero : kZeroStages) {
    Rig rig(DeviceKind::cpu, Precision::fp32);
    const CountedRun run(rig, options_with(3, zero));
    for (const StateArray& array : run.trainer->state().arrays()) {
      double elements = 0.0;
      double places = 0.0;  // their sum
      for (const StateArray::Piece& piece : array.pieces) {
        const auto count = static_cast<double>(piece.values.size());
        elements += count;
        places += count * (static_cast<double>(piece.begin) + (count - 1.0) / 2.0);
      }
      if (array.placement == Placement::sharded) {
        elements = test_world().sum(elements);
        places = test_world().sum(places);
      }
      const auto size = static_cast<double>(element_count(array.shape()));
      EXPECT_EQ(elements, size) << array.name;
      EXPECT_EQ(places, size * (size - 1.0) / 2.0) << array.name;
    }
  }
}

TEST(TrainingState, BuffersStartWithTheirInitialValue) {
  Rig rig(DeviceKind::cpu, Precision::fp32);
  const CountedRun run(rig, options_with(3, Zero::nothing));
  for (int i = 0; i < 6; ++i) EXPECT_EQ(run.model->seen().as<float>()[i], 0.25f);
}

}  // namespace
}  // namespace ddptrain
