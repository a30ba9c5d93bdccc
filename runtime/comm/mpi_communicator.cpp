#include <spdlog/spdlog.h>

#include <deque>
#include <limits>

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
      fail("all-reduce of {} over MPI: MPI adds f32 and f64 only", name_of(dtype));
  }
}

class MpiCommunicator final : public Communicator {
 public:
  MpiCommunicator(const World& world, Backend& backend) : size_(world.size()), backend_(backend) {
    DDP_MPI_CHECK(MPI_Comm_dup(MPI_COMM_WORLD, &comm_));
  }

  ~MpiCommunicator() override {
    // Waiting for a peer that may be gone would hang.
    if (!outstanding_.empty()) {
      spdlog::warn("MPI communicator: destroyed with {} collectives outstanding", outstanding_.size());
    } else if (MPI_Comm_free(&comm_) != MPI_SUCCESS) {
      spdlog::warn("MPI_Comm_free failed");
    }
  }

  MpiCommunicator(const MpiCommunicator&) = delete;
  MpiCommunicator& operator=(const MpiCommunicator&) = delete;

  int size() const override { return size_; }

  Buffer allocate(std::size_t bytes) override { return backend_.allocate(bytes); }

  Ticket all_reduce_sum(const Tensor& values, Stream) override {
    const MPI_Datatype type = mpi_type(values.dtype);
    DDP_CHECK(values.size() <= std::numeric_limits<int>::max(), "all-reduce of {} elements; MPI counts to 2^31 - 1",
              values.size());
    MPI_Request request = MPI_REQUEST_NULL;
    DDP_MPI_CHECK(
        MPI_Iallreduce(MPI_IN_PLACE, values.data, static_cast<int>(values.size()), type, MPI_SUM, comm_, &request));
    outstanding_.push_back(request);  // NOLINT(clang-analyzer-optin.mpi.MPI-Checker): test() and wait() finish it
    return completed_ + outstanding_.size() - 1;
  }

  bool test(Ticket ticket) override {
    while (!outstanding_.empty()) {
      int done = 0;
      DDP_MPI_CHECK(MPI_Test(&outstanding_.front(), &done, MPI_STATUS_IGNORE));
      if (done == 0) break;
      complete_front();
    }
    return ticket < completed_;
  }

  void wait(Ticket ticket) override {
    DDP_CHECK(ticket < completed_ + outstanding_.size(), "wait for ticket {}, which was never given", ticket);
    while (completed_ <= ticket) {
      DDP_MPI_CHECK(MPI_Wait(&outstanding_.front(), MPI_STATUS_IGNORE));
      complete_front();
    }
  }

  void broadcast(const Tensor& values, int root, Stream) override {
    mpi_broadcast_bytes(values.data, values.bytes(), root, comm_);
  }

  std::string library_version() const override { return mpi_version(); }

 private:
  void complete_front() {
    outstanding_.pop_front();
    ++completed_;
  }

  int size_;
  Backend& backend_;
  MPI_Comm comm_ = MPI_COMM_NULL;
  std::deque<MPI_Request> outstanding_;  // in the order of their tickets
  Ticket completed_ = 0;                 // tickets below are done
};

}  // namespace

std::unique_ptr<Communicator> make_mpi_communicator(const World& world, Backend& backend) {
  if (backend.kind() != DeviceKind::cpu) fail("make_mpi_communicator: MPI carries CPU memory only; use NCCL for GPUs");
  return std::make_unique<MpiCommunicator>(world, backend);
}

}  // namespace ddptrain
