#include <spdlog/spdlog.h>

#include <cstring>
#include <deque>
#include <limits>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/mpi_check.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

MPI_Datatype mpi_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return MPI_DOUBLE;
    case DType::f32:
      return MPI_FLOAT;
    default:
      fail("sums of {} over MPI: MPI adds f32 and f64 only", name_of(dtype));
  }
}

int mpi_count(std::int64_t count, const char* what) {
  DDP_CHECK(count <= std::numeric_limits<int>::max(), "{} of {}; MPI counts to 2^31 - 1", what, count);
  return static_cast<int>(count);
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const World& world, Device& device) : rank_(world.rank()), size_(world.size()), device_(device) {
    DDP_MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
    DDP_MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &gather_comm_));
  }

  ~MpiCommunicator() override {
    // Waiting for a peer that may be gone would hang.
    if (!outstanding_.empty()) {
      spdlog::warn("MPI communicator: destroyed with {} collectives outstanding", outstanding_.size());
    } else if (MPI_Comm_free(&comm_) != MPI_SUCCESS || MPI_Comm_free(&gather_comm_) != MPI_SUCCESS) {
      spdlog::warn("MPI_Comm_free failed");
    }
  }

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  Ticket all_reduce_sum(const Tensor& values, Stream) override {
    const MPI_Datatype type = mpi_type(values.dtype);
    const int count = mpi_count(values.size(), "sums");
    return start({}, [&](MPI_Request* request) {
      DDP_MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, values.data, count, type, MPI_SUM, comm_, request));
    });
  }

  Ticket reduce_scatter_sum(const Tensor& values, Stream) override {
    const MPI_Datatype type = mpi_type(values.dtype);
    const Tensor part = own_part(*this, values);
    const int count = mpi_count(part.size(), "sums");
    // In place, MPI would leave the part at the start of `values`.
    return start({part.data, std::vector<char>(part.bytes())}, [&](MPI_Request* request) {
      void* sums = outstanding_.back().landing.sums.data();
      DDP_MPI_CHECK(MPI_Ireduce_scatter_block(values.data, sums, count, type, MPI_SUM, comm_, request));
    });
  }

  Ticket all_gather(const Tensor& values, Stream) override {
    const Tensor part = own_part(*this, values);
    const int count = mpi_count(static_cast<std::int64_t>(part.bytes()), "bytes to gather");
    return start({}, [&](MPI_Request* request) {
      DDP_MPI_CHECK(MPI_Iallgather(MPI_IN_PLACE, count, MPI_BYTE, values.data, count, MPI_BYTE, gather_comm_, request));
    });
  }

  bool test(Ticket ticket) override {
    while (!outstanding_.empty()) {
      int done = 0;
      DDP_MPI_CHECK(MPI_Test(&outstanding_.front().request, &done, MPI_STATUS_IGNORE));
      if (done == 0) break;
      complete_front();
    }
    return ticket < completed_;
  }

  void wait(Ticket ticket) override {
    DDP_CHECK(ticket < completed_ + outstanding_.size(), "wait for ticket {}, which was never given", ticket);
    while (completed_ <= ticket) {
      DDP_MPI_CHECK(MPI_Wait(&outstanding_.front().request, MPI_STATUS_IGNORE));
      complete_front();
    }
  }

  void broadcast(const Tensor& values, int root, Stream) override {
    mpi_broadcast_bytes(values.data, values.bytes(), root, comm_);
  }

  std::string library() const override { return "MPI"; }
  std::string library_version() const override { return mpi_version(); }

 private:
  /// Where sums go when they have arrived.
  struct Landing {
    void* target = nullptr;
    std::vector<char> sums;
  };
  struct Outstanding {
    MPI_Request request = MPI_REQUEST_NULL;
    Landing landing;
  };

  template <class Call>
  Ticket start(Landing landing, Call&& call) {
    outstanding_.push_back({MPI_REQUEST_NULL, std::move(landing)});
    call(&outstanding_.back().request);
    return completed_ + outstanding_.size() - 1;
  }

  void complete_front() {
    const Landing& landing = outstanding_.front().landing;
    if (!landing.sums.empty()) std::memcpy(landing.target, landing.sums.data(), landing.sums.size());
    outstanding_.pop_front();
    ++completed_;
  }

  int rank_;
  int size_;
  Device& device_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  MPI_Comm gather_comm_ = MPI_COMM_NULL;  // lets ranks gather at different points of the sequence of sums
  std::deque<Outstanding> outstanding_;   // in the order of their tickets
  Ticket completed_ = 0;                  // tickets below are done
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Device& device) {
  if (device.kind() != DeviceKind::cpu) fail("make_mpi_communicator: MPI carries CPU memory only; use NCCL for GPUs");
  return std::make_unique<MpiCommunicator>(world, device);
}

}  // namespace ddptrain
