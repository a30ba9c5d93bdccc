#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/decoder/decoder.h"
#include "runtime/comm/mesh.h"
#include "runtime/core/error.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "runtime/train/replica/trainer.h"
#include "tests/models/second_family/tiny_llama.h"
#include "tests/support/mpi_main.h"

namespace ddptrain::tests {
namespace {

constexpr int kVirtualRanks = 4;
constexpr int kSteps = 6;

const TokenDataset& text() {
  static const TokenDataset data(load_tokens("synthetic:4000:61", {}), 8);
  return data;
}

/// A mesh of the ranks of a job, each of which trains its stage and slice of a tiny Llama.
class MeshRun {
 public:
  MeshRun(const World& job, const MeshShape& shape, Zero zero)
      : job_(job), mesh_(job, shape), replicas_(make_communicator(mesh_.replicas(), *device_, {})) {
    if (mesh_.stages() != nullptr) stages_ = make_communicator(*mesh_.stages(), *device_, {});
    if (mesh_.tensor() != nullptr) {
      layers_ = make_communicator(*mesh_.tensor(), *device_, {});
      group_ = std::make_unique<TensorGroup>(*mesh_.tensor(), *layers_, *device_);
    }
    TrainerOptions options;
    options.batch = 2;
    options.virtual_ranks = kVirtualRanks;
    options.clip_norm = 0.5f;
    options.zero = shape.replicas > 1 ? zero : Zero::nothing;
    options.optimizer.kind = OptimizerKind::adamw;
    options.bucket_bytes = 20000;
    options.last_bucket_bytes = 5000;
    DecoderOptions decoder;
    decoder.table = tiny_llama();
    decoder.blocks = stage_blocks(decoder.table.config, shape.stages, mesh_.stage());
    decoder.slice = {shape.tensor, mesh_.tensor_rank()};
    decoder.max_batch = options.batch;
    decoder.dropout = 0.1f;
    trainer_ = std::make_unique<Trainer>(options, make_decoder(*device_, decoder, make_resident(text(), *device_)),
                                         text(), mesh_.replicas(), *device_, *replicas_,
                                         Stages{mesh_.stages(), stages_.get(), group_.get()});
  }

  void run(int steps) { trainer_->run(static_cast<std::uint64_t>(steps)); }
  std::string hash() const { return trainer_->parameter_hash(); }
  double test_loss() { return trainer_->evaluate(40).mean_loss(); }

  void save(const std::string& folder, std::int64_t step) const {
    CheckpointOptions options;
    options.folder = folder;
    RunIdentity identity;
    identity.model = "tiny";
    identity.mesh = mesh_.shape();
    identity.batch = identity.samples_per_step = 1;
    CheckpointWriter writer(options, identity, *trainer_, job_);
    ASSERT_FALSE(writer.start({step, {}, {}, {}}));
    ASSERT_EQ(writer.wait().value().error, "");
  }
  void resume(const std::string& folder) {
    const auto checkpoint = find_checkpoint(job_, folder);
    ASSERT_TRUE(checkpoint);
    restore_arrays(*checkpoint, trainer_->state(), job_, *device_, mesh_.shape().stages == 1);
    trainer_->restored();
  }

 private:
  const World& job_;
  std::unique_ptr<Device> device_ = make_cpu_device({});
  Mesh mesh_;
  std::unique_ptr<Communicator> replicas_, stages_, layers_;
  std::unique_ptr<TensorGroup> group_;
  std::unique_ptr<Trainer> trainer_;
};

struct MeshCase {
  MeshShape shape;
  Zero zero = Zero::nothing;
};

/// All meshes of the ranks of this test.
std::vector<MeshCase> meshes() {
  const int ranks = test_world().size();
  std::vector<MeshCase> all;
  for (const int stages : {1, 2, 4}) {
    for (const int tensor : {1, 2, 4}) {
      if (ranks % (stages * tensor) != 0) continue;
      const int replicas = ranks / (stages * tensor);
      for (const Zero zero : {Zero::nothing, Zero::state, Zero::gradients, Zero::weights}) {
        if (replicas > 1 || zero == Zero::nothing) all.push_back({{stages, replicas, tensor}, zero});
      }
    }
  }
  return all;
}

std::string text_of(const MeshCase& mesh) {
  return fmt::format("{} stages, {} replicas with ZeRO {}, {} slices", mesh.shape.stages, mesh.shape.replicas,
                     static_cast<int>(mesh.zero), mesh.shape.tensor);
}

TEST(SecondFamily, EveryMeshEndsWithOneHashAndSlicesWithTheSameLoss) {
  const auto alone = test_world().split(test_world().rank());
  MeshRun one(*alone, {}, Zero::nothing);
  one.run(kSteps);
  const double loss = one.test_loss();
  std::map<int, std::string> hashes = {{1, one.hash()}};
  for (const MeshCase& mesh : meshes()) {
    SCOPED_TRACE(text_of(mesh));
    MeshRun run(test_world(), mesh.shape, mesh.zero);
    run.run(kSteps);
    const std::string hash = run.hash();
    EXPECT_EQ(hashes.try_emplace(mesh.shape.tensor, hash).first->second, hash);
    EXPECT_NEAR(run.test_loss(), loss, 5e-6 * loss);
  }
}

TEST(SecondFamily, ResumesWithTheSameBits) {
  for (const MeshCase& mesh : meshes()) {
    SCOPED_TRACE(text_of(mesh));
    const SharedFolder folder("second_family");
    MeshRun whole(test_world(), mesh.shape, mesh.zero);
    whole.run(2);
    whole.save(folder.string(), 2);
    whole.run(3);
    MeshRun resumed(test_world(), mesh.shape, mesh.zero);
    resumed.resume(folder.string());
    resumed.run(3);
    EXPECT_EQ(resumed.hash(), whole.hash());
  }
}

}  // namespace
}  // namespace ddptrain::tests
