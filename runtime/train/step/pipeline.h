#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/step/step_order.h"

namespace ddptrain {

/// This rank's place in its replica: its stage, the other stages, the tensor ranks. `ranks` null: one stage.
struct Stages {
  const World* ranks = nullptr;          ///< Rank s has stage s.
  Communicator* communicator = nullptr;  ///< Connects `ranks`.
  TensorGroup* tensor = nullptr;         ///< The ranks that split this stage's layers; null: layers are not split.

  int count() const { return ranks == nullptr ? 1 : ranks->size(); }
  int index() const { return ranks == nullptr ? 0 : ranks->rank(); }
  bool is_last() const { return index() + 1 == count(); }
};

/// How long the host waits for other ranks of its replica.
struct ReplicaSeconds {
  double stages = 0.0;  ///< For other stages.
  double layers = 0.0;  ///< For the collectives of ranks that split layers.

  ReplicaSeconds& operator+=(const ReplicaSeconds& more) {
    stages += more.stages;
    layers += more.layers;
    return *this;
  }
  ReplicaSeconds operator-(const ReplicaSeconds& before) const {
    return {stages - before.stages, layers - before.layers};
  }
};

/// This stage's share of a count, such as the number of parameters. Stages count in the order of the backward pass,
/// which begins in the last stage.
struct StageShare {
  std::int64_t before = 0;  ///< The sum over the later stages.
  std::int64_t all = 0;     ///< The sum over all stages.
};
StageShare share_of(const Stages& stages, std::int64_t mine);  ///< Collective.

/// Exchanges activations and gradients with the previous and the next stage.
class Pipeline {
 public:
  using ModelOf = std::function<Model&(std::int64_t pass)>;

  /// The members of `stages` and the device outlive the pipeline.
  Pipeline(const Stages& stages, Device& device) : stages_(stages), device_(device) {}

  const Stages& stages() const { return stages_; }
  /// Sends and receives in the order of the compute stream. A tied weight goes with the activations of pass 0. The host
  /// waits if the communicator needs it.
  void exchange(const Exchange& messages, const ModelOf& model_of);
  /// Sends and receives messages of stages in the order of the compute stream; Message::rank is a stage.
  void send_to_stages(const std::vector<Message>& sends, const std::vector<Message>& receives);
  /// squares = the sum of all ranks' squares in the replica, in the order of the compute stream.
  void sum_over_replica(const Tensor& squares);
  ReplicaSeconds seconds() const { return {seconds_waited_, stages_.tensor ? stages_.tensor->seconds_waited() : 0.0}; }

 private:
  Stages stages_;
  Device& device_;
  double seconds_waited_ = 0.0;
};

/// The model and as many siblings as make `count`.
std::vector<std::unique_ptr<Model>> with_siblings(std::unique_ptr<Model> model, std::int64_t count);

}  // namespace ddptrain
