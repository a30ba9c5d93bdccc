// Trains a model of its own on data of its own with ddptrain as a library: mpirun -np 2 points
// Logistic regression tells the points of the plane on one side of a line from those on the other.
#include <cmath>
#include <cstdio>
#include <exception>
#include <memory>
#include <random>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/train/replica/trainer.h"
#include "runtime/train/run/training_run.h"

namespace {

using namespace ddptrain;

struct Point {
  float x, y, label;
};

/// The first points are for training, the others for testing.
class Points final : public Dataset {
 public:
  Points(std::int64_t train, std::int64_t test) : train_(train), points_(static_cast<std::size_t>(train + test)) {
    std::mt19937 random(1);
    for (Point& point : points_) {
      const auto coordinate = [&] { return static_cast<float>(random()) / static_cast<float>(random.max()) - 0.5f; };
      point = {coordinate(), coordinate(), 0.0f};
      point.label = 2.0f * point.x - point.y > 0.25f ? 1.0f : 0.0f;
    }
  }

  std::int64_t train_count() const override { return train_; }
  std::int64_t test_count() const override { return static_cast<std::int64_t>(points_.size()) - train_; }
  DataContent content() const override { return {std::to_string(points_.size()) + " points", SharedHash()}; }

  const Point* train() const { return points_.data(); }
  const Point* test() const { return points_.data() + train_; }

 private:
  std::int64_t train_;
  std::vector<Point> points_;
};

/// label = sigmoid(weight . point + bias), on the CPU.
class LogisticRegression final : public Model {
 public:
  explicit LogisticRegression(const Points& data) : data_(data) {}

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }
  void bind(const ModelTensors& tensors) override { tensors_ = tensors; }

  void begin(const MicroBatch& batch) override { batch_ = batch; }

  void forward(std::size_t) override {
    gradients_ = {};
    const float scale = batch_.gradient_scale;
    visit(batch_.training ? data_.train() : data_.test(), [&](const Point& point, float error) {
      gradients_.x += scale * error * point.x;
      gradients_.y += scale * error * point.y;
      gradients_.label += scale * error;
    });
  }

  void backward(std::size_t, bool accumulate, const Ready& ready) override {
    auto* weight = static_cast<float*>(tensors_.gradients[0].data);
    auto* bias = static_cast<float*>(tensors_.gradients[1].data);
    weight[0] = gradients_.x + (accumulate ? weight[0] : 0.0f);
    weight[1] = gradients_.y + (accumulate ? weight[1] : 0.0f);
    ready(0);
    *bias = gradients_.label + (accumulate ? *bias : 0.0f);
    ready(1);
  }

  double flops_per_sample() const override { return 12.0; }
  const char* sample_unit() const override { return "points"; }

 private:
  /// Shows every point of the micro-batch with the derivative of its loss.
  template <class See>
  void visit(const Point* points, const See& see) const {
    const auto* weight = static_cast<const float*>(tensors_.weights[0].data);
    const auto* bias = static_cast<const float*>(tensors_.weights[1].data);
    const BatchRows rows(batch_.slice.order, batch_.slice.step);
    for (std::uint32_t row = 0; row < batch_.slice.count; ++row) {
      const Point& point = points[rows[row]];
      const float probability = 1.0f / (1.0f + std::exp(-(weight[0] * point.x + weight[1] * point.y + *bias)));
      const float error = probability - point.label;
      batch_.sums->loss -= std::log(1.0 - std::abs(error));
      batch_.sums->correct += std::abs(error) < 0.5f ? 1 : 0;
      batch_.sums->samples += 1;
      see(point, error);
    }
  }

  const Points& data_;
  std::vector<ParameterSpec> parameters_ = {{"weight", {2}}, {"bias", {1}, {}, false}};
  ModelTensors tensors_;
  MicroBatch batch_;
  Point gradients_{};
};

int train(const World& world) {
  const Points data(4096, 1024);
  const auto device = make_cpu_device({});
  const auto communicator = make_communicator(world, *device);
  TrainerOptions options;
  options.batch = 64 / world.size();
  options.optimizer.schedule.peak = 0.1f;
  Trainer trainer(options, std::make_unique<LogisticRegression>(data), data, world, *device, *communicator);
  RunOptions run;
  run.epochs = 4;
  const RunResult result = run_training(trainer, world, run, nullptr);
  const double accuracy = result.epochs.back().test_accuracy;
  if (world.rank() == 0) std::printf("accuracy %.4f\nparameters %s\n", accuracy, result.parameter_hash.c_str());
  return accuracy > 0.97 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  World world(&argc, &argv);
  try {
    return train(world);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "points: %s\n", error.what());
    world.abort(1);
  }
}
