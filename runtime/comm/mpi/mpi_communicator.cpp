#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi/hierarchical.h"
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/bf16.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// MPI's operation for bf16. Each addition is rounded to bf16.
void add_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const Bf16*>(in);
  auto* b = static_cast<Bf16*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = to_bf16(to_float(a[i]) + to_float(b[i]));
}

/// The number of elements for a call of MPI.
int mpi_count(const Tensor& values) {
  DDP_CHECK(values.size() <= std::numeric_limits<int>::max(), "{} values in one call; MPI counts to 2^31 - 1",
            values.size());
  return static_cast<int>(values.size());
}

/// For values that MPI moves and does not add.
MPI_Datatype moved_type(DType dtype) {
  switch (size_of(dtype)) {
    case 8:
      return MPI_UINT64_T;
    case 4:
      return MPI_UINT32_T;
    case 2:
      return MPI_UINT16_T;
    default:
      return MPI_BYTE;
  }
}

constexpr int kLargestTag = 32767;  // The MPI standard promises as many.

/// The host of this rank. With one host and bf16 messages, each rank counts as a host.
int host_of(const World& world, bool rounds) { return rounds && world.nodes() == 1 ? world.rank() : world.node(); }

/// A collective in progress. It passes through these members in order. On CPUs only the middle one takes time.
struct Outstanding {
  const char* name = nullptr;
  std::uint64_t sequence = 0;               ///< Of the watch's records.
  std::unique_ptr<Event> copied;            ///< The copy from the device; null if nothing is copied.
  std::function<void(Outstanding&)> start;  ///< Makes the requests, or `hierarchical` with its memory.
  bool started = false;
  bool finished = false;
  std::vector<MPI_Request> requests;
  std::vector<char> memory;
  std::unique_ptr<HierarchicalCollective> hierarchical;
  std::function<void()> arrived;  ///< Copies the result to its place.
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const World& world, Device& device, const CommunicatorOptions& options)
      : rank_(world.rank()),
        size_(world.size()),
        device_(device),
        staged_(device.kind() != DeviceKind::cpu),
        layout_(world.all_gather(std::vector{options.host.value_or(host_of(world, options.bf16_between_hosts))})),
        rounds_between_hosts_(options.bf16_between_hosts) {
    const Watch::Collective collective(*world.watch(), "duplication of ranks", 0);
    DDP_MPI_CHECK(MPI_Comm_dup(MpiAccess::comm(world), &comm_));
    DDP_MPI_CHECK(MPI_Comm_dup(MpiAccess::comm(world), &gather_comm_));
    DDP_MPI_CHECK(MPI_Comm_dup(MpiAccess::comm(world), &exchange_comm_));
    DDP_MPI_CHECK(MPI_Op_create(add_bf16, 1, &bf16_sum_));
  }

  ~MpiCommunicator() override {
    // Waiting for a peer that may be gone would hang.
    const Watch::Wait wait(device_.watch(), "the end of the communicator");
    if (!outstanding_.empty()) {
      spdlog::warn("MPI communicator: destroyed with {} collectives outstanding", outstanding_.size());
    } else if (MPI_Comm_free(&comm_) != MPI_SUCCESS || MPI_Comm_free(&gather_comm_) != MPI_SUCCESS ||
               MPI_Comm_free(&exchange_comm_) != MPI_SUCCESS || MPI_Op_free(&bf16_sum_) != MPI_SUCCESS) {
      spdlog::warn("MPI_Comm_free failed");
    }
  }

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return "MPI"; }
  bool capturable() const override { return !staged_; }

  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    if (from.data != to.data) device_.copy(to.data, from.data, from.bytes(), stream);
    void* values = sent(to, stream);
    if (layout_.hosts() > 1) {
      return begin("all-reduce", to, values, stream, [=, this](Outstanding& started) {
        start(started, sums_, sum_work({values, to.dtype, to.shape}, true));
      });
    }
    const auto [type, op] = sum_of(to.dtype);
    const int count = mpi_count(to);
    return begin("all-reduce", to, values, stream, [=, this, type = type, op = op](Outstanding& started) {
      DDP_MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, values, count, type, op, comm_, &started.requests.emplace_back()));
    });
  }

  Ticket reduce_sum(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    const bool is_root = rank_ == root;
    const bool in_place = is_root && from.data == to.data;
    void* values = sent(from, stream);
    void* sums = in_place ? values : is_root ? received(to) : nullptr;
    const void* send = in_place ? MPI_IN_PLACE : values;
    const int count = mpi_count(from);
    const auto [type, op] = sum_of(from.dtype);
    const auto start = [=, this, type = type, op = op](Outstanding& started) {
      DDP_MPI_CHECK(MPI_Ireduce(send, sums, count, type, op, root, comm_, &started.requests.emplace_back()));
    };
    const auto arrived = [=, this, copies = staged_ && is_root] {
      if (copies) device_.copy(to.data, sums, to.bytes(), stream);
    };
    return begin("reduce", stream, from.bytes(), start, arrived);
  }

  Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    void* send = sent(from, stream);
    if (layout_.hosts() > 1 && layout_.all_own()) return scatter_over_hosts(from, to, send, stream);
    const int count = shard_size(from);
    const auto [type, op] = sum_of(from.dtype);
    // In place, MPI would leave the shard at the start of `from`.
    auto landing = std::make_shared<std::vector<char>>(to.bytes());
    void* recv = staged_ ? received(to) : landing->data();
    return begin(
        "reduce-scatter", to, recv, stream,
        [=, this, type = type, op = op](Outstanding& started) {
          DDP_MPI_CHECK(
              MPI_Ireduce_scatter_block(send, recv, count, type, op, comm_, &started.requests.emplace_back()));
        },
        [to, landing, copies = !staged_] {
          if (copies) std::memcpy(to.data, landing->data(), landing->size());
        });
  }

  Ticket all_gather(const Tensor& from, const Tensor& to, Stream stream) override {
    auto* const values = static_cast<char*>(received(to));
    char* const own = values + static_cast<std::size_t>(rank_) * from.bytes();
    if (own != from.data) device_.copy(own, from.data, from.bytes(), stream);
    if (layout_.hosts() > 1 && layout_.all_own()) {
      return begin("all-gather", to, values, stream, [=, this](Outstanding& started) {
        start(started, gathers_, {{values, to.dtype, to.shape}, to.dtype, false, true});
      });
    }
    const int count = shard_size(to);
    const MPI_Datatype type = moved_type(to.dtype);
    return begin("all-gather", to, values, stream, [=, this](Outstanding& started) {
      DDP_MPI_CHECK(
          MPI_Iallgather(MPI_IN_PLACE, 0, type, values, count, type, gather_comm_, &started.requests.emplace_back()));
    });
  }

  Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) override {
    const int count = shard_size(from);
    const MPI_Datatype type = moved_type(from.dtype);
    const void* send = sent(from, stream);
    void* recv = received(to);
    return begin("all-to-all", to, recv, stream, [=, this](Outstanding& started) {
      DDP_MPI_CHECK(MPI_Ialltoall(send, count, type, recv, count, type, comm_, &started.requests.emplace_back()));
    });
  }

  Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    if (rank_ == root && from.data != to.data) device_.copy(to.data, from.data, from.bytes(), stream);
    void* values = rank_ == root ? sent(to, stream) : received(to);
    return begin("broadcast", to, values, stream, [=, this, bytes = to.bytes()](Outstanding&) {
      // Not MPI_Ibcast, whose count is an int.
      const Watch::Wait wait(device_.watch(), "broadcast");
      mpi_broadcast_bytes(values, bytes, root, comm_);
    });
  }

  Ticket exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Stream stream) override {
    std::vector<void*> sent_from;
    std::vector<void*> received_in;
    for (const Message& message : sends) sent_from.push_back(sent(message.values, stream));
    for (const Message& message : receives) received_in.push_back(received(message.values));
    const auto start = [=, this](Outstanding& started) {
      for (std::size_t i = 0; i < sends.size(); ++i) {
        const auto& [values, rank] = sends[i];
        DDP_MPI_CHECK(MPI_Isend(sent_from[i], mpi_count(values), moved_type(values.dtype), rank, 0, exchange_comm_,
                                &started.requests.emplace_back()));
      }
      for (std::size_t i = 0; i < receives.size(); ++i) {
        const auto& [values, rank] = receives[i];
        DDP_MPI_CHECK(MPI_Irecv(received_in[i], mpi_count(values), moved_type(values.dtype), rank, 0, exchange_comm_,
                                &started.requests.emplace_back()));
      }
    };
    const auto arrived = [=, this, staged = staged_] {
      for (std::size_t i = 0; staged && i < receives.size(); ++i) {
        device_.copy(receives[i].values.data, received_in[i], receives[i].values.bytes(), stream);
      }
    };
    return begin("exchange", stream, receives.empty() ? 0 : receives.front().values.bytes(), start, arrived);
  }

  bool test(Ticket ticket) override {
    progress();
    if (ticket < completed_) return true;
    const std::uint64_t place = ticket - completed_;
    return place < outstanding_.size() && outstanding_[place].finished;
  }

  void wait(Ticket ticket) override {
    DDP_CHECK(ticket < completed_ + outstanding_.size(), "wait for ticket {}, which was never given", ticket);
    if (completed_ > ticket) return;
    const Watch::Wait wait(device_.watch(), outstanding_.front().name);
    while (completed_ <= ticket) {
      progress();
      if (completed_ <= ticket) std::this_thread::yield();
    }
  }

 private:
  /// The number of elements of one of size() shards. Error if the shards cannot be equal.
  int shard_size(const Tensor& values) const {
    own_shard(*this, values);
    return mpi_count(values) / size_;
  }

  std::pair<MPI_Datatype, MPI_Op> sum_of(DType dtype) const {
    switch (dtype) {
      case DType::f64:
        return {MPI_DOUBLE, MPI_SUM};
      case DType::f32:
        return {MPI_FLOAT, MPI_SUM};
      case DType::bf16:
        return {MPI_UINT16_T, bf16_sum_};
      default:
        fail("sums of {} over MPI: f64, f32 and bf16 only", name_of(dtype));
    }
  }

  /// The memory from which MPI sends `from`. Queues the copy to it on `stream`.
  void* sent(const Tensor& from, Stream stream) {
    if (!staged_) return from.data;
    void* host = staging(from);
    device_.copy(host, from.data, from.bytes(), stream);
    return host;
  }
  void* received(const Tensor& to) { return staged_ ? staging(to) : to.data; }

  /// Pinned memory for a tensor. It is kept, because each step sends the same tensors.
  void* staging(const Tensor& values) {
    Buffer& buffer = staging_[{values.data, values.bytes()}];
    if (buffer.data() == nullptr) buffer = device_.allocate_pinned(values.bytes());
    return buffer.data();
  }

  HierarchicalCollective::Work sum_work(const Tensor& values, bool gathers) const {
    const bool rounds = rounds_between_hosts_ && values.dtype == DType::f32;
    return {values, rounds ? DType::bf16 : values.dtype, true, gathers};
  }

  /// `send` has the values of `from`.
  Ticket scatter_over_hosts(const Tensor& from, const Tensor& to, void* send, Stream stream) {
    const std::size_t offset = static_cast<std::size_t>(rank_) * to.bytes();
    const bool in_place = static_cast<char*>(from.data) + offset == to.data;
    // The sum in this memory is not used.
    auto sums = std::make_shared<std::vector<char>>(in_place || staged_ ? 0 : from.bytes());
    char* values = sums->empty() ? static_cast<char*>(send) : sums->data();
    const HierarchicalCollective::Work work = sum_work({values, from.dtype, from.shape}, false);
    return begin(
        "reduce-scatter", to, values + offset, stream,
        [=, this](Outstanding& started) {
          if (!sums->empty()) std::memcpy(values, send, sums->size());
          start(started, sums_, work);
        },
        [=] {
          if (!sums->empty()) std::memcpy(to.data, values + offset, to.bytes());
        });
  }

  /// Collectives that are made of messages. They use an MPI communicator of their own.
  struct Sequence {
    MPI_Comm* comm;
    int next = 0;
  };

  void start(Outstanding& started, Sequence& sequence, const HierarchicalCollective::Work& work) {
    if (!spare_memory_.empty()) {
      started.memory = std::move(spare_memory_.back());
      spare_memory_.pop_back();
    }
    const int tag = sequence.next * HierarchicalCollective::kTags;
    sequence.next = (sequence.next + 1) % (kLargestTag / HierarchicalCollective::kTags);
    started.hierarchical = start_hierarchical(layout_, rank_, *sequence.comm, tag, work, started.memory);
  }

  /// `to` gets what MPI leaves in `recv`. On a CPU `arrived` copies it.
  Ticket begin(
      const char* name, const Tensor& to, void* recv, Stream stream, std::function<void(Outstanding&)> start,
      std::function<void()> arrived = [] {}) {
    if (staged_) arrived = [this, to, recv, stream] { device_.copy(to.data, recv, to.bytes(), stream); };
    return begin(name, stream, to.bytes(), std::move(start), std::move(arrived));
  }

  Ticket begin(const char* name, Stream stream, std::size_t bytes, std::function<void(Outstanding&)> start,
               std::function<void()> arrived) {
    Outstanding next;
    next.name = name;
    next.sequence = device_.watch().queued(name, bytes);
    next.start = std::move(start);
    next.arrived = std::move(arrived);
    if (staged_) next.copied = device_.mark(stream);
    outstanding_.push_back(std::move(next));
    progress();
    return completed_ + outstanding_.size() - 1;
  }

  void progress() {
    for (Outstanding& each : outstanding_) {  // all ranks start in the same order
      if (each.started) continue;
      if (each.copied && !each.copied->done()) break;
      device_.watch().started(each.sequence);
      each.start(each);
      each.started = true;
    }
    for (auto each = outstanding_.rbegin(); each != outstanding_.rend(); ++each) {  // the last is needed first
      if (each->hierarchical && each->hierarchical->progress()) {
        each->hierarchical.reset();
        spare_memory_.push_back(std::move(each->memory));
        finish(*each);
      }
    }
    while (!outstanding_.empty() && outstanding_.front().started) {
      Outstanding& first = outstanding_.front();
      if (first.hierarchical) break;
      if (!first.finished) {
        int done = 0;
        DDP_MPI_CHECK(
            MPI_Testall(static_cast<int>(first.requests.size()), first.requests.data(), &done, MPI_STATUSES_IGNORE));
        if (done == 0) break;
        finish(first);
      }
      outstanding_.pop_front();
      ++completed_;
    }
  }

  void finish(Outstanding& each) {
    device_.watch().finished(each.sequence);
    each.arrived();
    each.finished = true;
  }

  int rank_;
  int size_;
  Device& device_;
  bool staged_;  ///< Messages go through pinned memory.
  HostLayout layout_;
  bool rounds_between_hosts_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm gather_comm_ = MPI_COMM_NULL;    // so that ranks may gather at different points of the order of sums
  MPI_Comm exchange_comm_ = MPI_COMM_NULL;  // messages of hierarchical sums have the same ranks and tags
  MPI_Op bf16_sum_ = MPI_OP_NULL;
  Sequence sums_{&comm_};
  Sequence gathers_{&gather_comm_};
  std::vector<std::vector<char>> spare_memory_;  // of hierarchical collectives
  std::map<std::pair<const void*, std::size_t>, Buffer> staging_;
  std::deque<Outstanding> outstanding_;  // in the order of their tickets
  Ticket completed_ = 0;                 // tickets below are done
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device,
                                                    const CommunicatorOptions& options) {
  return std::make_unique<MpiCommunicator>(world, device, options);
}

}  // namespace ddptrain
