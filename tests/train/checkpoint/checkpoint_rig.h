#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/decoder/decoder.h"
#include "models/gpt2/gpt2.h"
#include "runtime/core/error.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/checkpoint/checkpoint_writer.h"
#include "tests/train/model_around.h"
#include "tests/train/rig.h"

namespace ddptrain::tests {

namespace fs = std::filesystem;

inline constexpr std::int64_t kSequence = 8;

inline const TokenDataset& data() {
  static const TokenDataset tokens(load_tokens("synthetic:1000:16", {}), kSequence);
  return tokens;
}

inline std::unique_ptr<Model> tiny_gpt(Device& device, std::int64_t batch, std::int64_t feed_forward) {
  DecoderOptions options;
  options.table = gpt2_table({1, 8, 2, feed_forward, kSequence, 16});
  options.max_batch = batch;
  options.dropout = 0.2f;
  return make_decoder(device, options, make_resident(data(), device));
}

/// A replica on each rank of `world`, which may be a part of the job.
struct Replica {
  const World& world;
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;
  Counting* model = nullptr;
  std::unique_ptr<Trainer> trainer;

  Replica(const World& world, TrainerOptions options, std::int64_t feed_forward = 9) : world(world) {
    device = make_cpu_device({});
    communicator = make_communicator(world, *device, {});
    options.batch = 12 / world.size() / options.grad_accum;
    auto counting = std::make_unique<Counting>(tiny_gpt(*device, options.batch, feed_forward));
    model = counting.get();
    trainer = std::make_unique<Trainer>(options, std::move(counting), data(), world, *device, *communicator);
  }

  std::map<std::string, std::vector<char>> arrays() const {
    std::map<std::string, std::vector<char>> copy;
    for (const StateArray& array : trainer->state().arrays()) {
      for (const StateArray::Piece& piece : array.pieces) {
        std::vector<char>& bytes = copy[array.name];
        bytes.resize(piece.values.bytes());
        device->copy_to_host(bytes.data(), piece.values.data, bytes.size());
      }
    }
    return copy;
  }

  void resume(const Checkpoint& checkpoint) {
    restore_arrays(checkpoint, trainer->state(), world, *device);
    trainer->restored(restored_sums(checkpoint.manifest.progress, world.rank(), world.size()));
  }
};

inline TrainerOptions options_with(OptimizerKind kind, Zero zero, std::int64_t grad_accum = 1) {
  TrainerOptions options;
  options.grad_accum = grad_accum;
  options.bucket_bytes = 1000;
  options.last_bucket_bytes = 500;
  options.optimizer.kind = kind;
  options.zero = zero;
  return options;
}

inline RunIdentity identity(const World& world) {
  RunIdentity run;
  run.model = "gpt";
  run.mesh.replicas = world.size();
  run.batch = run.samples_per_step = 1;
  run.flags = {{"--lr", "0.1"}};
  return run;
}

inline WrittenCheckpoint write(Replica& run, const fs::path& folder, std::int64_t step, std::int64_t keep = 10) {
  CheckpointOptions options;
  options.folder = folder.string();
  options.keep = keep;
  CheckpointWriter writer(options, identity(run.world), *run.trainer, run.world);
  const auto failed = writer.start({step, {}, {}, {}});
  return failed ? *failed : writer.wait().value();
}

inline std::vector<std::int64_t> steps_in(const fs::path& folder) {
  std::vector<std::int64_t> steps;
  for (const auto& [step, path] : checkpoints_in(folder)) steps.push_back(step);
  return steps;
}

}  // namespace ddptrain::tests
