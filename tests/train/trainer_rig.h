#pragma once

#include <gtest/gtest.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/train/model_around.h"
#include "tests/train/rig.h"

/// What tests of the trainer share: data, options that divide among 1 to 4 ranks, runs from the start.
namespace ddptrain::trainer_test {

constexpr std::int64_t kSamplesPerStep = 12;  // divides by 1, 2, 3 and 4 ranks

inline const ImageData& data() {
  static const ImageData images = make_synthetic(100, 7);
  return images;
}

inline TrainerOptions options_for_ranks() {
  TrainerOptions options;
  options.batch = kSamplesPerStep / test_world().size();
  options.seed = 3;
  options.bucket_bytes = 100000;
  options.last_bucket_bytes = 10000;
  return options;
}

inline std::string hash_after(Rig& rig, const TrainerOptions& options, std::uint64_t steps) {
  const auto trainer = rig.trainer(options, data());
  trainer->run(steps);
  return trainer->state().parameter_hash();
}

inline std::vector<double> parameters_after(Rig& rig, const TrainerOptions& options, std::uint64_t steps) {
  const auto trainer = rig.trainer(options, data());
  trainer->run(steps);
  return master_values(trainer->arena(), *rig.device);
}

/// A model, behind a pause of this rank before every forward pass.
class PausingModel final : public tests::ModelAround {
 public:
  using Pause = std::function<std::chrono::duration<double>()>;
  PausingModel(std::unique_ptr<Model> model, Pause pause) : ModelAround(std::move(model)), pause_(std::move(pause)) {}

  void begin(const MicroBatch& batch) override {
    if (batch.training) std::this_thread::sleep_for(pause_());
    ModelAround::begin(batch);
  }

 private:
  Pause pause_;
};

}  // namespace ddptrain::trainer_test
