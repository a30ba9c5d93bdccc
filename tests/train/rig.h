#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "data/images/images.h"
#include "models/cnn/cnn.h"
#include "runtime/core/error.h"
#include "runtime/train/replica/trainer.h"
#include "tests/support/gpus.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {

inline constexpr std::array kZeroStages = {Zero::nothing, Zero::state, Zero::gradients, Zero::weights};

/// A device and a communicator for all ranks of the test.
struct Rig {
  std::unique_ptr<Device> device;
  std::unique_ptr<Communicator> communicator;

  Rig(DeviceKind kind, Precision precision, bool symmetric = false, bool fp8 = false) {
    const World& world = test_world();
    DeviceOptions options;
    options.precision = precision;
    options.fp8 = fp8;
    options.ranks = ranks_per_gpu(world.size());
    device =
        kind == DeviceKind::cuda ? make_cuda_device(options, gpu_of(world.local_rank())) : make_cpu_device(options);
    setenv("NCCL_GRAPH_REGISTER", "0", 0);  // the communicator serves several trainers: see Communicator::allocate()
    communicator = make_communicator(world, *device, {.symmetric = symmetric});
  }

  std::unique_ptr<Model> cnn(const TrainerOptions& options, const ImageData& data, bool dropout = true) {
    return make_cnn(*device, {options.batch, options.seed, dropout}, make_resident(data, *device));
  }
  std::unique_ptr<Trainer> trainer(const TrainerOptions& options, const ImageData& data, bool dropout = true) {
    return trainer(options, data, cnn(options, data, dropout));
  }
  std::unique_ptr<Trainer> trainer(const TrainerOptions& options, const ImageData& data, std::unique_ptr<Model> model) {
    return std::make_unique<Trainer>(options, std::move(model), data, test_world(), *device, *communicator);
  }
};

inline const ImageData& some_images() {
  static const ImageData images = make_synthetic(600, 7);
  return images;
}

inline bool enough_devices(DeviceKind kind) {
  return kind == DeviceKind::cpu || test_world().min(has_gpus_for(test_world().size()) ? 1.0 : 0.0) > 0.0;
}

/// A case for each kind of device, skipped where there are too few.
class EachDevice : public testing::TestWithParam<DeviceKind> {
 protected:
  void SetUp() override {
    if (!enough_devices(GetParam())) GTEST_SKIP() << "needs a GPU for each of " << test_world().size() << " ranks";
  }
  static std::vector<Precision> precisions() {
    if (GetParam() == DeviceKind::cpu) return {Precision::fp32};
    return {Precision::fp32, Precision::bf16};
  }
};

/// Message of the error that all ranks throw alike; empty: none is thrown.
inline std::string error_of(const std::function<void()>& check) {
  std::string message;
  try {
    check();
  } catch (const Error& error) {
    EXPECT_TRUE(error.agreed());
    message = error.what();
  }
  for (const std::string& other : test_world().all_gather(message)) EXPECT_EQ(other, message);
  return message;
}

/// Adds the values of a tensor of f32 or f64.
inline void append(std::vector<double>& all, const Tensor& tensor, Device& device) {
  const auto as = [&]<class T>(T) {
    std::vector<T> values(static_cast<std::size_t>(tensor.size()));
    device.copy_to_host(values.data(), tensor.data, tensor.bytes());
    all.insert(all.end(), values.begin(), values.end());
  };
  tensor.dtype == DType::f64 ? as(double{}) : as(float{});
}

/// Gradients of all parameters, one after the other (f32 or f64).
inline std::vector<double> gradients_of(const ParameterArena& arena, Device& device) {
  std::vector<double> all;
  for (const Tensor& gradient : arena.gradients()) append(all, gradient, device);
  return all;
}

/// Master values of all parameters, one after the other. Collective where the arena is sharded.
inline std::vector<double> master_values(const ParameterArena& arena, Device& device) {
  std::vector<double> all;
  arena.visit([&](const ParameterSpec&, std::int64_t, const Tensor& values) { append(all, values, device); });
  return all;
}

}  // namespace ddptrain
