#include <spdlog/spdlog.h>

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
#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/bf16.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// Each addition is rounded to bf16.
void add_bf16(void* in, void* inout, int* count, MPI_Datatype*) {
  const auto* a = static_cast<const Bf16*>(in);
  auto* b = static_cast<Bf16*>(inout);
  for (int i = 0; i < *count; ++i) b[i] = to_bf16(to_float(a[i]) + to_float(b[i]));
}

int mpi_count(std::int64_t count, const char* what) {
  DDP_CHECK(count <= std::numeric_limits<int>::max(), "{} of {}; MPI counts to 2^31 - 1", what, count);
  return static_cast<int>(count);
}

/// A collective passes through these in order; on CPUs memory is sent as it is, and only the middle one takes time.
struct Outstanding {
  const char* name = nullptr;
  std::uint64_t sequence = 0;     ///< Of the watch's records.
  std::unique_ptr<Event> copied;  ///< From the device; null where nothing is copied.
  std::function<void(MPI_Request*)> start;
  MPI_Request request = MPI_REQUEST_NULL;
  bool started = false;
  std::function<void()> arrived;  ///< Brings the result to where it belongs.
};

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const World& world, Device& device)
      : rank_(world.rank()), size_(world.size()), device_(device), staged_(device.kind() != DeviceKind::cpu) {
    const Watch::Collective collective(*world.watch(), "duplication of ranks", 0);
    DDP_MPI_CHECK(MPI_Comm_dup(MpiAccess::comm(world), &comm_));
    DDP_MPI_CHECK(MPI_Comm_dup(MpiAccess::comm(world), &gather_comm_));
    DDP_MPI_CHECK(MPI_Op_create(add_bf16, 1, &bf16_sum_));
  }

  ~MpiCommunicator() override {
    // Waiting for a peer that may be gone would hang.
    const Watch::Wait wait(device_.watch(), "the end of the communicator");
    if (!outstanding_.empty()) {
      spdlog::warn("MPI communicator: destroyed with {} collectives outstanding", outstanding_.size());
    } else if (MPI_Comm_free(&comm_) != MPI_SUCCESS || MPI_Comm_free(&gather_comm_) != MPI_SUCCESS ||
               MPI_Op_free(&bf16_sum_) != MPI_SUCCESS) {
      spdlog::warn("MPI_Comm_free failed");
    }
  }

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override { return "MPI"; }
  std::string library_version() const override { return mpi_version(); }
  bool capturable() const override { return !staged_; }

  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    const auto [type, op] = sum_of(from.dtype);
    const int count = mpi_count(from.size(), "sums");
    const void* send = from.data == to.data ? MPI_IN_PLACE : sent(from, stream);
    void* recv = from.data == to.data ? sent(from, stream) : received(to);
    return begin("all-reduce", to, recv, stream, [=, this, type = type, op = op](MPI_Request* request) {
      DDP_MPI_CHECK(MPI_Iallreduce(send, recv, count, type, op, comm_, request));
    });
  }

  Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    const auto [type, op] = sum_of(from.dtype);
    const int count = mpi_count(own_part(*this, from).size(), "sums");
    const void* send = sent(from, stream);
    // In place, MPI would leave the part at the start of `from`.
    auto landing = std::make_shared<std::vector<char>>(to.bytes());
    void* recv = staged_ ? received(to) : landing->data();
    return begin(
        "reduce-scatter", to, recv, stream,
        [=, this, type = type, op = op](MPI_Request* request) {
          DDP_MPI_CHECK(MPI_Ireduce_scatter_block(send, recv, count, type, op, comm_, request));
        },
        [to, landing, copies = !staged_] {
          if (copies) std::memcpy(to.data, landing->data(), landing->size());
        });
  }

  Ticket all_gather(const Tensor& from, const Tensor& to, Stream stream) override {
    const int count = mpi_count(static_cast<std::int64_t>(from.bytes()), "bytes to gather");
    const bool in_place = from.data == own_part(*this, to).data;
    const void* send = in_place ? MPI_IN_PLACE : sent(from, stream);
    char* recv = static_cast<char*>(received(to));
    if (in_place && staged_) {
      device_.copy(recv + static_cast<std::size_t>(rank_) * from.bytes(), from.data, from.bytes(), stream);
    }
    return begin("all-gather", to, recv, stream, [=, this](MPI_Request* request) {
      DDP_MPI_CHECK(MPI_Iallgather(send, count, MPI_BYTE, recv, count, MPI_BYTE, gather_comm_, request));
    });
  }

  Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) override {
    const int count = mpi_count(static_cast<std::int64_t>(own_part(*this, from).bytes()), "bytes to exchange");
    const void* send = sent(from, stream);
    void* recv = received(to);
    return begin("all-to-all", to, recv, stream, [=, this](MPI_Request* request) {
      DDP_MPI_CHECK(MPI_Ialltoall(send, count, MPI_BYTE, recv, count, MPI_BYTE, comm_, request));
    });
  }

  Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    if (rank_ == root && from.data != to.data) device_.copy(to.data, from.data, from.bytes(), stream);
    void* values = rank_ == root ? sent(to, stream) : received(to);
    return begin("broadcast", to, values, stream, [=, this, bytes = to.bytes()](MPI_Request* request) {
      // Not MPI_Ibcast, whose count is an int.
      const Watch::Wait wait(device_.watch(), "broadcast");
      *request = MPI_REQUEST_NULL;
      mpi_broadcast_bytes(values, bytes, root, comm_);
    });
  }

  bool test(Ticket ticket) override {
    progress();
    return ticket < completed_;
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

  /// Where MPI finds the values of `from`, once the copy that this queues on `stream` is done.
  void* sent(const Tensor& from, Stream stream) {
    if (!staged_) return from.data;
    void* host = staging(from);
    device_.copy(host, from.data, from.bytes(), stream);
    return host;
  }
  void* received(const Tensor& to) { return staged_ ? staging(to) : to.data; }

  /// Pinned memory of a tensor; kept, since a step sends the same tensors as the one before.
  void* staging(const Tensor& values) {
    Buffer& buffer = staging_[{values.data, values.bytes()}];
    if (buffer.data() == nullptr) buffer = device_.allocate_pinned(values.bytes());
    return buffer.data();
  }

  Ticket begin(
      const char* name, const Tensor& to, void* recv, Stream stream, std::function<void(MPI_Request*)> start,
      std::function<void()> arrived = [] {}) {
    Outstanding next;
    next.name = name;
    next.sequence = device_.watch().queued(name, to.bytes());
    next.start = std::move(start);
    next.arrived = std::move(arrived);
    if (staged_) {
      next.copied = device_.mark(stream);
      next.arrived = [this, to, recv, stream] { device_.copy(to.data, recv, to.bytes(), stream); };
    }
    outstanding_.push_back(std::move(next));
    progress();
    return completed_ + outstanding_.size() - 1;
  }

  void progress() {
    for (Outstanding& each : outstanding_) {  // all ranks start in the same order
      if (each.started) continue;
      if (each.copied && !each.copied->done()) break;
      device_.watch().started(each.sequence);
      each.start(&each.request);
      each.started = true;
    }
    while (!outstanding_.empty() && outstanding_.front().started) {
      int done = 0;
      DDP_MPI_CHECK(MPI_Test(&outstanding_.front().request, &done, MPI_STATUS_IGNORE));
      if (done == 0) break;
      device_.watch().finished(outstanding_.front().sequence);
      outstanding_.front().arrived();
      outstanding_.pop_front();
      ++completed_;
    }
  }

  int rank_;
  int size_;
  Device& device_;
  bool staged_;  ///< Through pinned memory.
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm gather_comm_ = MPI_COMM_NULL;  // lets ranks gather at different points of the sequence of sums
  MPI_Op bf16_sum_ = MPI_OP_NULL;
  std::map<std::pair<const void*, std::size_t>, Buffer> staging_;
  std::deque<Outstanding> outstanding_;  // in the order of their tickets
  Ticket completed_ = 0;                 // tickets below are done
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device) {
  return std::make_unique<MpiCommunicator>(world, device);
}

}  // namespace ddptrain
