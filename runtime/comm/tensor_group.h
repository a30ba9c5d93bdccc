#pragma once

#include <functional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// The ranks among which layers are split. They work on the same samples; between layers, each has its part of the
/// activations' rows. What is summed or gathered is so in the order of the compute stream; the host waits for
/// communicators that need it.
class TensorGroup {
 public:
  /// `communicator`: of the ranks of `world`. All outlive this.
  TensorGroup(const World& world, Communicator& communicator, Device& device)
      : world_(world), communicator_(communicator), device_(device) {}

  const World& world() const { return world_; }
  bool is_first() const { return world_.rank() == 0; }
  bool capturable() const { return communicator_.capturable(); }
  /// This rank's part of as many equal ones as there are ranks, without their shape.
  Tensor own(const Tensor& values) const { return own_part(communicator_, values); }

  struct Collective {
    Communicator::Ticket (Communicator::*start)(const Tensor& from, const Tensor& to, Stream stream);
    Tensor from, to;
  };
  /// values = their sums over the ranks, the same bits on all of them.
  static Collective sum(const Tensor& values) { return {&Communicator::all_reduce_sum, values, values}; }
  /// to = the sum over the ranks of this rank's part of `from`, which is as many equal parts as there are ranks. In
  /// place, the other parts are left in an unspecified state.
  static Collective sum_part(const Tensor& from, const Tensor& to) {
    return {&Communicator::reduce_scatter_sum, from, to};
  }
  Collective sum_part(const Tensor& values) const { return sum_part(values, own(values)); }
  /// to = the `from` of all ranks, in their order.
  static Collective gather(const Tensor& from, const Tensor& to) { return {&Communicator::all_gather, from, to}; }
  Collective gather(const Tensor& values) const { return gather(own(values), values); }

  /// One after the other. What `work` queues on the compute stream runs at the same time and does not use their
  /// tensors.
  void run(const std::vector<Collective>& collectives, const std::function<void()>& work = {});
  double seconds_waited() const { return seconds_waited_; }  ///< Of the host, in all.

 private:
  const World& world_;
  Communicator& communicator_;
  Device& device_;
  double seconds_waited_ = 0.0;
};

}  // namespace ddptrain
