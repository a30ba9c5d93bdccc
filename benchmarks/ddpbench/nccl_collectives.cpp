#include <cuda_runtime_api.h>
#include <nccl.h>
#include <spdlog/spdlog.h>

#include <algorithm>

#include "benchmarks/ddpbench/collectives.h"
#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::bench {
namespace {

void check(ncclResult_t result, const char* call) {
  if (result == ncclSuccess) return;
  const char* detail = ncclGetLastError(nullptr);
  fail("{} failed: {} {}. NCCL_DEBUG=INFO shows more.", call, ncclGetErrorString(result), detail ? detail : "");
}

void release(ncclResult_t result, const char* call) {
  if (result != ncclSuccess) spdlog::warn("{} failed: {}", call, ncclGetErrorString(result));
}

ncclDataType_t nccl_type(DType dtype) { return dtype == DType::bf16 ? ncclBfloat16 : ncclFloat; }

class NcclCollectives final : public Collectives {
 public:
  NcclCollectives(const World& world, Device& device, bool symmetric)
      : device_(device), symmetric_(symmetric), stream_(static_cast<cudaStream_t>(device.compute_stream().handle)) {
    ncclUniqueId id{};
    if (world.rank() == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    world.broadcast(&id, sizeof(id), 0);
    check(ncclCommInitRank(&comm_, world.size(), id, world.rank()), "ncclCommInitRank");
  }
  ~NcclCollectives() override { release(ncclCommDestroy(comm_), "ncclCommDestroy"); }
  NcclCollectives(const NcclCollectives&) = delete;
  NcclCollectives& operator=(const NcclCollectives&) = delete;

  std::string library() const override { return "NCCL"; }
  std::string version() const override { return nccl_version(); }
  bool can(Collective, DType dtype) const override { return dtype == DType::f32 || dtype == DType::bf16; }

  Buffer allocate(std::size_t bytes) override {
    if (!symmetric_) return device_.allocate(bytes);
    constexpr std::size_t kUnit = NCCL_WIN_REQUIRED_ALIGNMENT;
    const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
    void* memory = nullptr;
    ncclWindow_t window = nullptr;
    check(ncclMemAlloc(&memory, padded), "ncclMemAlloc");
    check(ncclCommWindowRegister(comm_, memory, padded, &window, NCCL_WIN_COLL_SYMMETRIC), "ncclCommWindowRegister");
    Buffer buffer(memory, bytes, [comm = comm_, window](void* raw) {
      if (window != nullptr) release(ncclCommWindowDeregister(comm, window), "ncclCommWindowDeregister");
      release(ncclMemFree(raw), "ncclMemFree");
    });
    if (window == nullptr) usage_error("--symmetric: NCCL has no symmetric memory on these GPUs; leave it out");
    DDP_CUDA(cudaMemset(memory, 0, padded));
    DDP_CUDA(cudaDeviceSynchronize());
    return buffer;
  }

  void start(const CollectiveCall& call) override {
    const ncclDataType_t type = nccl_type(call.dtype);
    switch (call.collective) {
      case Collective::all_reduce:
        check(ncclAllReduce(call.send, call.recv, call.count, type, ncclSum, comm_, stream_), "ncclAllReduce");
        return;
      case Collective::reduce_scatter:
        check(ncclReduceScatter(call.send, call.recv, call.count, type, ncclSum, comm_, stream_), "ncclReduceScatter");
        return;
      case Collective::all_gather:
        check(ncclAllGather(call.send, call.recv, call.count, type, comm_, stream_), "ncclAllGather");
        return;
      case Collective::broadcast:
        check(ncclBroadcast(call.send, call.recv, call.count, type, 0, comm_, stream_), "ncclBroadcast");
        return;
    }
  }

 private:
  Device& device_;
  bool symmetric_;
  cudaStream_t stream_;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::unique_ptr<Collectives> make_nccl_collectives(const World& world, Device& device, bool symmetric) {
  return std::make_unique<NcclCollectives>(world, device, symmetric);
}

}  // namespace ddptrain::bench
