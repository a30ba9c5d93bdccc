#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"

namespace ddptrain {

std::unique_ptr<Communicator> make_nccl_communicator(const World&, Device&, const CommunicatorOptions&) {
  usage_error(
      "NCCL: this program was built without CUDA. Use --device cpu, or configure with -DDDPTRAIN_CUDA=ON on a machine "
      "that has the CUDA toolkit and build again.");
}

std::string nccl_version() { return {}; }

std::string nccl_library() { return {}; }

}  // namespace ddptrain
