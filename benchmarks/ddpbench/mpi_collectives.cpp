#include <cstring>
#include <limits>

#include "benchmarks/ddpbench/collectives.h"
#include "runtime/comm/mpi_check.h"
#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

class MpiCollectives final : public Collectives {
 public:
  MpiCollectives(const World& world, Device& device) : ranks_(world.size()), device_(device) {}

  std::string library() const override { return "MPI"; }
  std::string version() const override { return mpi_version(); }

  bool can(Collective collective, DType dtype) const override {
    const bool moves_only = collective == Collective::all_gather || collective == Collective::broadcast;
    return dtype == DType::f32 || moves_only;
  }

  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }

  void start(const CollectiveCall& call) override {
    const bool sums = call.collective == Collective::all_reduce || call.collective == Collective::reduce_scatter;
    const MPI_Datatype type = sums ? MPI_FLOAT : MPI_BYTE;
    const std::size_t elements = call.count * (sums ? 1 : size_of(call.dtype));
    if (elements > std::numeric_limits<int>::max()) {
      usage_error("{} of {} elements: MPI counts to 2^31 - 1. Give a smaller --end.", name_of(call.collective),
                  elements);
    }
    run(call, static_cast<int>(elements), type);
  }

 private:
  void run(const CollectiveCall& call, int count, MPI_Datatype type) const {
    const void* send = call.send;
    if (overlaps(call)) send = MPI_IN_PLACE;
    switch (call.collective) {
      case Collective::all_reduce:
        DDP_MPI_CHECK(MPI_Allreduce(send, call.recv, count, type, MPI_SUM, MPI_COMM_WORLD));
        return;
      case Collective::reduce_scatter:
        reduce_scatter(call, send == MPI_IN_PLACE, count, type);
        return;
      case Collective::all_gather:
        DDP_MPI_CHECK(MPI_Allgather(send, count, type, call.recv, count, type, MPI_COMM_WORLD));
        return;
      case Collective::broadcast:
        broadcast(call, count, type);
        return;
    }
  }

  bool overlaps(const CollectiveCall& call) const {
    const auto* send = static_cast<const char*>(call.send);
    const auto* recv = static_cast<const char*>(call.recv);
    const std::size_t share = call.count * size_of(call.dtype);
    const std::size_t ranks = static_cast<std::size_t>(ranks_);
    if (call.collective == Collective::all_gather) return send >= recv && send < recv + ranks * share;
    if (call.collective == Collective::reduce_scatter) return recv >= send && recv < send + ranks * share;
    return send == recv;
  }

  /// MPI's in-place form leaves the result at the start of the buffer, NCCL's at this rank's share.
  static void reduce_scatter(const CollectiveCall& call, bool in_place, int count, MPI_Datatype type) {
    if (!in_place) {
      DDP_MPI_CHECK(MPI_Reduce_scatter_block(call.send, call.recv, count, type, MPI_SUM, MPI_COMM_WORLD));
      return;
    }
    char* all = static_cast<char*>(const_cast<void*>(call.send));
    DDP_MPI_CHECK(MPI_Reduce_scatter_block(MPI_IN_PLACE, all, count, type, MPI_SUM, MPI_COMM_WORLD));
    std::memmove(call.recv, all, call.count * size_of(call.dtype));
  }

  /// MPI_Bcast works only in place, so the root copies first.
  static void broadcast(const CollectiveCall& call, int count, MPI_Datatype type) {
    int rank = 0;
    DDP_MPI_CHECK(MPI_Comm_rank(MPI_COMM_WORLD, &rank));
    if (rank == 0 && call.send != call.recv) std::memcpy(call.recv, call.send, static_cast<std::size_t>(count));
    DDP_MPI_CHECK(MPI_Bcast(call.recv, count, type, 0, MPI_COMM_WORLD));
  }

  int ranks_;
  Device& device_;
};

}  // namespace

std::unique_ptr<Collectives> make_mpi_collectives(const World& world, Device& device) {
  return std::make_unique<MpiCollectives>(world, device);
}

}  // namespace ddptrain::bench
