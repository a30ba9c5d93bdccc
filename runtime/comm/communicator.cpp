#include "runtime/comm/communicator.h"

#include <algorithm>

#include "runtime/core/error.h"

namespace ddptrain {

PeerInboxes PeerMemory::inboxes(int rank) const {
  PeerInboxes inboxes;
  inboxes.rank = rank;
  inboxes.size = static_cast<int>(of_rank.size());
  std::copy(of_rank.begin(), of_rank.end(), inboxes.of_rank.begin());
  return inboxes;
}

Tensor own_shard(const Communicator& communicator, const Tensor& values) {
  const std::int64_t shards = communicator.size();
  DDP_CHECK(values.size() % shards == 0, "{} elements do not divide into {} shards", values.size(), shards);
  const std::int64_t count = values.size() / shards;
  return values.stretch(communicator.rank() * count, count);
}

Communicator::Ticket Communicator::reduce_scatter_sum(const Tensor& values, Stream stream) {
  return reduce_scatter_sum(values, own_shard(*this, values), stream);
}

Communicator::Ticket Communicator::all_gather(const Tensor& values, Stream stream) {
  return all_gather(own_shard(*this, values), values, stream);
}

Communicator::Ticket Communicator::gather_after_swap(const std::vector<Tensor>& all, Stream stream) {
  Ticket last = 0;
  for (const Tensor& to : all) last = all_gather(to, stream);
  return last;
}

std::unique_ptr<Communicator> make_communicator(const World& world, Device& device,
                                                const CommunicatorOptions& options) {
  const bool gpus = device.kind() == DeviceKind::cuda;
  world.agree([&] {
    if (options.library != CommLibrary::nccl || gpus) return;
    usage_error("--comm nccl: NCCL carries the memory of GPUs, and these ranks compute on CPUs. Use --comm mpi.");
  });
  if (world.size() == 1) return make_self_communicator(device);
  const bool mpi = options.library == CommLibrary::mpi || !gpus;
  return mpi ? make_mpi_communicator(world, device, options) : make_nccl_communicator(world, device, options);
}

}  // namespace ddptrain
