#include "runtime/comm/communicator.h"

#include "runtime/core/error.h"

namespace ddptrain {

Tensor own_part(const Communicator& communicator, const Tensor& values) {
  const std::int64_t parts = communicator.size();
  DDP_CHECK(values.size() % parts == 0, "{} elements do not divide into {} parts", values.size(), parts);
  const std::int64_t count = values.size() / parts;
  const std::int64_t offset = communicator.rank() * count * static_cast<std::int64_t>(size_of(values.dtype));
  return {static_cast<char*>(values.data) + offset, values.dtype, {count}};
}

std::unique_ptr<Communicator> make_communicator(const World& world, Device& device, const NcclOptions& options) {
  if (world.size() == 1) return make_self_communicator(device);
  if (device.kind() == DeviceKind::cpu) return make_mpi_communicator(world, device);
  return make_nccl_communicator(world, device, options);
}

}  // namespace ddptrain
