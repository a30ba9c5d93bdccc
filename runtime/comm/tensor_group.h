#pragma once

#include <functional>

#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// The ranks among which layers are split. They work on the same samples and have the same activations between layers.
/// What is summed or gathered is so in the order of the compute stream; the host waits for communicators that need it.
class TensorGroup {
 public:
  /// `communicator`: of the ranks of `world`. All outlive this.
  TensorGroup(const World& world, Communicator& communicator, Device& device)
      : world_(world), communicator_(communicator), device_(device) {}

  const World& world() const { return world_; }
  bool is_first() const { return world_.rank() == 0; }
  bool capturable() const { return communicator_.capturable(); }
  /// values = their sums over the ranks, the same bits on all of them.
  void sum(const Tensor& values);
  /// The same. What `work` queues on the compute stream runs beside it and does not use `values`.
  void sum_beside(const Tensor& values, const std::function<void()>& work);
  /// to = the `from` of all ranks, in their order.
  void gather(const Tensor& from, const Tensor& to);
  double seconds_waited() const { return seconds_waited_; }  ///< Of the host, in all.

 private:
  const World& world_;
  Communicator& communicator_;
  Device& device_;
  double seconds_waited_ = 0.0;
};

}  // namespace ddptrain
