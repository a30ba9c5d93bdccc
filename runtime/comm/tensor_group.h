#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// The ranks that share the layers of one stage (tensor parallelism). They work on the same samples; between layers,
/// each keeps some rows of the activations. run() keeps the order of the compute stream. exchange() queues work on
/// another stream instead, which overlaps with later work on the compute stream until await(). The host waits only if
/// the communicator needs it (MPI).
class TensorGroup {
 public:
  /// `communicator` connects `ranks`. All outlive the group.
  TensorGroup(const World& ranks, Communicator& communicator, Device& device)
      : ranks_(ranks), communicator_(communicator), device_(device) {}

  const World& ranks() const { return ranks_; }
  bool is_first() const { return ranks_.rank() == 0; }
  bool capturable() const { return communicator_.capturable(); }
  /// This rank's shard of `values`, which has one equal shard per rank; one-dimensional.
  Tensor own(const Tensor& values) const { return own_shard(communicator_, values); }

  struct Collective {
    Communicator::Ticket (Communicator::*start)(const Tensor& from, const Tensor& to, Stream stream);
    Tensor from;
    Tensor to;
  };
  /// Zeroed memory for which collectives are fastest. Collective.
  Buffer allocate(std::size_t bytes) const { return communicator_.allocate(bytes); }

  /// values = the sum of all ranks' values. All ranks get the same bits.
  static Collective sum(const Tensor& values) { return {&Communicator::all_reduce_sum, values, values}; }
  /// `from` has one equal shard per rank. to = the sum of all ranks' values of this rank's shard.
  static Collective sum_shard(const Tensor& from, const Tensor& to) {
    return {&Communicator::reduce_scatter_sum, from, to};
  }
  /// to = the `from` of all ranks, in the order of ranks.
  static Collective gather(const Tensor& from, const Tensor& to) { return {&Communicator::all_gather, from, to}; }
  Collective gather(const Tensor& values) const { return gather(own(values), values); }

  /// Shard r of `to` = this rank's shard of the `from` of rank r, for all other ranks r. This rank's own shard of `to`
  /// is unspecified afterwards.
  static Collective swap_shards(const Tensor& from, const Tensor& to) { return {&Communicator::swap_shards, from, to}; }

  /// Runs the collectives one after the other. `work` queues operations on the compute stream that run at the same
  /// time; they must not use the collectives' tensors.
  void run(const std::vector<Collective>& collectives, const std::function<void()>& work = {});
  /// The same for the in-place gather() of each of `all`, in an exchange() that has run() a swap_shards(). The rows of
  /// other ranks in `all` are free since the exchange began.
  void gather_after_swap(const std::vector<Tensor>& all, const std::function<void()>& work = {});

  // Chunks of a pass (BatchChunk): one is exchanged while another is computed.

  /// Marks the point of the compute stream for which the next exchange of `chunk` waits.
  void computed(std::size_t chunk);
  /// Calls `work`, which queues operations and run()s collectives into memory such as `received`. Inside it,
  /// Device::compute_stream() is the stream of the exchange. The work starts after earlier exchanges of the chunk and
  /// after the mark of computed(); without a mark, after everything on the compute stream. If copy engines exchange,
  /// each chunk has a stream of its own. Otherwise, all exchanges are on the communication stream.
  void exchange(std::size_t chunk, const Tensor& received, const std::function<void()>& work);
  /// Makes later work on the compute stream wait for the exchange of `chunk`.
  void await(std::size_t chunk);
  void await_all();

  double seconds_waited() const { return seconds_waited_; }  ///< How long the host has waited in all.

 private:
  struct Chunk {
    std::unique_ptr<Event> computed;
    std::unique_ptr<Event> exchanged;
  };

  Chunk& chunk(std::size_t index);
  using Start = std::function<Communicator::Ticket(Stream)>;
  void run(const Start& start, const std::function<void()>& work);
  void run_on(Stream stream, const Start& start, const std::function<void()>& work);

  const World& ranks_;
  Communicator& communicator_;
  Device& device_;
  std::vector<Chunk> chunks_;
  std::optional<Stream> compute_;  ///< The compute stream, during exchange().
  double seconds_waited_ = 0.0;
};

}  // namespace ddptrain
