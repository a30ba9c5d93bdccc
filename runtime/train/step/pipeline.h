#pragma once

#include <cstdint>
#include <functional>

#include "runtime/comm/communicator.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"
#include "runtime/train/step/schedule.h"

namespace ddptrain {

/// The ranks that train one replica, each a stage of it, or a part of one. Without a world there is one stage.
struct Stages {
  const World* world = nullptr;          ///< Rank s is stage s.
  Communicator* communicator = nullptr;  ///< Of the same ranks.
  TensorGroup* group = nullptr;          ///< The ranks that split the layers of this stage; null: this one has all.

  int count() const { return world == nullptr ? 1 : world->size(); }
  int index() const { return world == nullptr ? 0 : world->rank(); }
  bool is_last() const { return index() + 1 == count(); }
};

/// Time of the host with the other ranks of a replica.
struct ReplicaSeconds {
  double stages = 0.0;  ///< Waiting for other stages.
  double layers = 0.0;  ///< Summing and gathering over the ranks that split layers.

  ReplicaSeconds& operator+=(const ReplicaSeconds& more) {
    stages += more.stages;
    layers += more.layers;
    return *this;
  }
  ReplicaSeconds operator-(const ReplicaSeconds& before) const {
    return {stages - before.stages, layers - before.layers};
  }
};

/// Of counts that stages have, in the order in which the backward pass completes them: the last stage's are first.
struct StageShare {
  std::int64_t before = 0;  ///< Of the stages behind this one.
  std::int64_t all = 0;
};
StageShare share_of(const Stages& stages, std::int64_t mine);  ///< Collective.

/// Hands activations and gradients on between this rank's stage and its neighbours.
class Pipeline {
 public:
  using ModelOf = std::function<Model&(std::int64_t pass)>;

  /// What `stages` names and the device outlive this.
  Pipeline(const Stages& stages, Device& device) : stages_(stages), device_(device) {}

  const Stages& stages() const { return stages_; }
  /// Sends and receives in the order of the compute stream. The weight that units of several stages read is sent with
  /// pass 0. The host waits if the communicator needs it.
  void exchange(const Exchange& messages, const ModelOf& model_of);
  /// squares += those of all other ranks of the replica, in the order of the compute stream.
  void sum_over_replica(const Tensor& squares);
  ReplicaSeconds seconds() const { return {seconds_waited_, stages_.group ? stages_.group->seconds_waited() : 0.0}; }

 private:
  Stages stages_;
  Device& device_;
  double seconds_waited_ = 0.0;
};

}  // namespace ddptrain
