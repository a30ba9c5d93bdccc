#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/comm/mesh.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/train/replica/replica_check.h"
#include "tests/train/checkpoint/checkpoint_rig.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kBatch = 2;

/// A small GPT whose layers, width and vocabulary can be divided among the ranks of a test.
std::unique_ptr<Model> gpt_of(Device& device, const MeshShape& mesh, int rank, std::int64_t layers = 3) {
  DecoderOptions options;
  options.table = gpt2_table({layers, 24, 6, 48, 24, 600});
  options.max_batch = kBatch;
  options.blocks = stage_blocks(options.table.config, mesh.stages, mesh.stage_of(rank));
  options.slice = {mesh.tensor, mesh.tensor_rank_of(rank)};
  static const TokenDataset tokens(load_tokens("synthetic:4000:600", {}), 24);
  return make_decoder(device, options, make_resident(tokens, device));
}

const Dataset& samples() {
  static const TokenDataset tokens(load_tokens("synthetic:4000:600", {}), 24);
  return tokens;
}

/// A rank of a mesh of all ranks of `world`.
struct MeshRank {
  std::unique_ptr<Device> device = make_cpu_device({});
  Mesh mesh;
  std::unique_ptr<Communicator> replicas, stages, layers;
  std::unique_ptr<TensorGroup> group;
  std::unique_ptr<Trainer> trainer;

  MeshRank(const World& world, const MeshShape& shape, TrainerOptions options)
      : mesh(world, shape), replicas(make_communicator(mesh.replicas(), *device)) {
    options.batch = kBatch;
    if (mesh.stages() != nullptr) stages = make_communicator(*mesh.stages(), *device);
    if (mesh.tensor() != nullptr) {
      layers = make_communicator(*mesh.tensor(), *device);
      group = std::make_unique<TensorGroup>(*mesh.tensor(), *layers, *device);
    }
    trainer = std::make_unique<Trainer>(options, gpt_of(*device, shape, world.rank()), samples(), mesh.replicas(),
                                        *device, *replicas, Stages{mesh.stages(), stages.get(), group.get()});
  }
};

TrainerOptions clipping(std::size_t bucket_bytes, std::size_t last_bucket_bytes = 0) {
  TrainerOptions options;
  options.clip_norm = 0.05f;
  options.bucket_bytes = bucket_bytes;
  options.last_bucket_bytes = last_bucket_bytes;
  return options;
}

/// The buckets end within stages, at their ends, and behind several of them.
TEST(Mesh, APipelineClipsByTheBitsOfOneRank) {
  const World& world = test_world();
  const auto alone = world.split(world.rank());
  for (const auto& options : {clipping(1), clipping(3000, 500), clipping(20'000, 4000), clipping(60'000),
                              clipping(std::size_t{1} << 20, 1000), clipping(1, std::size_t{1} << 20)}) {
    SCOPED_TRACE(fmt::format("buckets of {} and {} bytes", options.bucket_bytes, options.last_bucket_bytes));
    MeshRank one(*alone, {}, options);
    MeshRank pipeline(world, {world.size(), 1, 1}, options);
    for (int step = 0; step < 3; ++step) {
      one.trainer->run(1);
      pipeline.trainer->run(1);
      EXPECT_EQ(pipeline.trainer->gradient_norm(), one.trainer->gradient_norm());
    }
    EXPECT_EQ(pipeline.trainer->parameter_hash(), one.trainer->parameter_hash());
  }
}

TEST(Mesh, APipelineRoundsByTheBitsOfOneRank) {
  const World& world = test_world();
  const auto alone = world.split(world.rank());
  TrainerOptions options = clipping(20'000, 4000);
  options.bf16_moments = true;
  options.has_masters = false;
  MeshRank one(*alone, {}, options);
  MeshRank pipeline(world, {world.size(), 1, 1}, options);
  one.trainer->run(3);
  pipeline.trainer->run(3);
  EXPECT_EQ(pipeline.trainer->parameter_hash(), one.trainer->parameter_hash());
}

/// The number of elements of split matrices that are not those of `whole`.
int count_other_elements(const TrainingState& parts, const TrainingState& whole) {
  std::map<std::string, const float*> values;
  const std::vector<StateArray> arrays = whole.arrays();
  for (const StateArray& array : arrays) values[array.name] = array.pieces.at(0).values.as<float>();
  int others = 0;
  for (const StateArray& array : parts.arrays()) {
    if (!array.name.starts_with("weight/") || array.shape().size() != 2 || array.slice.has_all()) continue;
    const Tensor& mine = array.pieces.at(0).values;
    array.slice.visit(0, mine.size(), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
      for (std::int64_t i = 0; i < count; ++i) {
        others += mine.as<float>()[at + i] != values.at(array.name)[in_whole + i] ? 1 : 0;
      }
    });
  }
  return others;
}

/// Decay alone moves the matrices, because gradients of parts differ in their last bits.
TEST(Mesh, PartsOfLayersRoundAsWholeOnes) {
  const World& world = test_world();
  const auto alone = world.split(world.rank());
  TrainerOptions options;
  options.bf16_moments = true;
  options.has_masters = false;
  options.optimizer.kind = OptimizerKind::sgd;
  options.optimizer.momentum = 0.0f;
  options.optimizer.weight_decay = 1e8f;
  options.optimizer.schedule.peak = 2.5e-12f;
  MeshRank one(*alone, {}, options);
  MeshRank parts(world, {1, 1, world.size()}, options);
  EXPECT_EQ(count_other_elements(parts.trainer->state(), one.trainer->state()), 0);
  one.trainer->run(2);
  EXPECT_GT(count_other_elements(parts.trainer->state(), one.trainer->state()), 100) << "where it began";
  parts.trainer->run(2);
  EXPECT_EQ(differing_replicas(parts.trainer->state(), nullptr, parts.group.get(), *parts.device), "");
  EXPECT_EQ(count_other_elements(parts.trainer->state(), one.trainer->state()), 0);
}

/// Without clipping, the norm is that of one rank, too.
TEST(Mesh, APipelineReportsTheNormOfOneRank) {
  const World& world = test_world();
  const auto alone = world.split(world.rank());
  TrainerOptions options = clipping(20'000);
  options.clip_norm = 0.0f;
  options.grad_accum = 2;
  MeshRank one(*alone, {}, options);
  MeshRank pipeline(world, {world.size(), 1, 1}, options);
  one.trainer->run(2);
  pipeline.trainer->run(2);
  EXPECT_EQ(pipeline.trainer->gradient_norm(), one.trainer->gradient_norm());
}

/// What every part has a copy of, such as the norms, counts once.
TEST(Mesh, PartsOfLayersHaveTheNormOfWholeOnes) {
  const World& world = test_world();
  const auto alone = world.split(world.rank());
  MeshRank one(*alone, {}, {});
  MeshRank parts(world, {1, 1, world.size()}, {});
  one.trainer->run(1);
  parts.trainer->run(1);
  const double norm = one.trainer->gradient_norm();
  EXPECT_NEAR(parts.trainer->gradient_norm(), norm, 1e-4 * norm);
}

/// All parts and stages of a replica see its samples; the checkpoint has their sums once.
TEST(Mesh, AReplicaStoresItsSumsOnce) {
  const World& world = test_world();
  for (const MeshShape& shape : {MeshShape{1, 1, world.size()}, MeshShape{world.size(), 1, 1}}) {
    const SharedFolder folder("sums");
    MeshRank run(world, shape, {});
    run.trainer->run(3);
    RunIdentity identified = identity(world);
    identified.mesh = shape;
    CheckpointOptions options;
    options.folder = folder.string();
    CheckpointWriter writer(options, identified, *run.trainer, world);
    ASSERT_FALSE(writer.start({3, {}, {}, {}}));
    ASSERT_EQ(writer.wait().value().error, "");
    const RunProgress progress = find_checkpoint(world, folder)->manifest.progress;
    EXPECT_EQ(progress.rank_sums.size(), 1u) << shape.place_of(world.rank());
    EXPECT_EQ(progress.rank_sums.at(0).samples, 3u * kBatch * 24);
  }
}

TEST(Mesh, ARunRemembersThatItHadAnotherTensor) {
  const auto with = [](int tensor, bool other = false) {
    RunIdentity run;
    run.mesh.tensor = tensor;
    run.other_tensor = other;
    return run;
  };
  EXPECT_FALSE(had_other_tensor(with(2), with(2)));
  EXPECT_TRUE(had_other_tensor(with(1), with(2)));
  EXPECT_TRUE(had_other_tensor(with(2, true), with(2))) << "of a resume before";
}

/// Passes all calls on to another communicator, but for all_gather(), which it counts.
class CountingGathers final : public Communicator {
 public:
  explicit CountingGathers(Communicator& inner) : inner_(inner) {}

  std::int64_t gathers() const { return gathers_; }
  using Communicator::all_gather;
  int rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  std::string library() const override { return inner_.library(); }
  Buffer allocate(std::size_t bytes) override { return inner_.allocate(bytes); }
  Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    return inner_.all_reduce_sum(from, to, stream);
  }
  Ticket reduce_sum(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    return inner_.reduce_sum(from, to, root, stream);
  }
  Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    return inner_.reduce_scatter_sum(from, to, stream);
  }
  Ticket all_gather(const Tensor&, const Tensor&, Stream) override {
    ++gathers_;
    return 0;
  }
  Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) override {
    return inner_.all_to_all(from, to, stream);
  }
  Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    return inner_.broadcast(from, to, root, stream);
  }
  Ticket exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Stream stream) override {
    return inner_.exchange(sends, receives, stream);
  }
  bool test(Ticket ticket) override { return inner_.test(ticket); }
  void wait(Ticket ticket) override { inner_.wait(ticket); }

 private:
  Communicator& inner_;
  std::int64_t gathers_ = 0;
};

/// Rank 0 has one batch of test samples more than the others. There are more blocks than places for gathered ones.
TEST(Mesh, RanksGatherTheSameWeightsInAnUnevenEvaluation) {
  const World& world = test_world();
  const auto device = make_cpu_device({});
  const auto communicator = make_communicator(world, *device);
  CountingGathers counting(*communicator);
  TrainerOptions options;
  options.batch = kBatch;
  options.zero = Zero::weights;
  Trainer trainer(options, gpt_of(*device, {}, 0, 7), samples(), world, *device, counting);
  const std::int64_t before = counting.gathers();
  trainer.evaluate(kBatch * world.size() + 1);
  const double gathered = static_cast<double>(counting.gathers() - before);
  EXPECT_GT(gathered, 0.0);
  EXPECT_EQ(world.min(gathered), world.max(gathered));
}

}  // namespace
}  // namespace ddptrain::tests
