#include <cuda_runtime_api.h>
#include <nccl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cstdlib>
#include <exception>
#include <map>
#include <utility>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl_peer_addresses.h"
#include "runtime/core/error.h"

static_assert(NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 0), "NCCL 2.27 or newer is needed (symmetric windows)");

namespace ddptrain {

namespace {

/// An NCCL communicator with what its error messages name. Buffers in its windows keep it alive.
class NcclComm {
 public:
  NcclComm(const World& world, int max_ctas) : rank_(world.rank()), host_(world.hostname()) {
    ncclUniqueId id{};
    if (rank_ == 0) check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    world.broadcast(&id, sizeof(id), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.commName = "ddptrain";
    if (max_ctas > 0) {
      config.maxCTAs = max_ctas;
      config.cgaClusterSize = 0;  // a cluster would wait for free multiprocessors that are neighbours
    }
    check(ncclCommInitRankConfig(&comm_, world.size(), id, rank_, &config), "ncclCommInitRankConfig");
  }

  ~NcclComm() {
    // With an exception on its way up, peers may be gone: abort ends the kernels that wait for them.
    const bool failed = std::uncaught_exceptions() > 0;
    const ncclResult_t result = failed ? ncclCommAbort(comm_) : ncclCommDestroy(comm_);
    if (result != ncclSuccess) log_failure(result, failed ? "ncclCommAbort" : "ncclCommDestroy");
  }

  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }

  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) throw Error(message(result, call));
  }

  void check(cudaError_t result, const char* call) const {
    if (result != cudaSuccess) fail("{} failed on rank {} ({}): {}", call, rank_, host_, cudaGetErrorString(result));
  }

  void log_failure(ncclResult_t result, const char* call) const { spdlog::warn("{}", message(result, call)); }

 private:
  std::string message(ncclResult_t result, const char* call) const {
    const char* detail = ncclGetLastError(comm_);
    return fmt::format("{} failed on rank {} ({}): {}{}{}. NCCL_DEBUG=INFO shows more.", call, rank_, host_,
                       ncclGetErrorString(result), detail != nullptr && *detail != '\0' ? ": " : "",
                       detail != nullptr ? detail : "");
  }

  int rank_;
  std::string host_;
  ncclComm_t comm_ = nullptr;
};

ncclDataType_t nccl_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return ncclDouble;
    case DType::f32:
      return ncclFloat;
    case DType::bf16:
      return ncclBfloat16;
    default:
      fail("sums of {} over NCCL: f64, f32 and bf16 only", name_of(dtype));
  }
}

/// Symmetric kernels need one node as NCCL sees it, and would bypass an algorithm or protocol that the user chose.
bool can_be_symmetric(const World& world) {
  const auto is_set = [](const char* name) { return std::getenv(name) != nullptr; };
  const bool mine = world.nodes() == 1 && !is_set("NCCL_ALGO") && !is_set("NCCL_PROTO") && !is_set("NCCL_HOSTID");
  return world.size() > 1 && world.min(mine ? 1.0 : 0.0) > 0.0;
}

void free_symmetric(const NcclComm& comm, ncclWindow_t window, void* memory) {
  // Waiting for work that waits for lost peers would hang; the process is about to end.
  if (std::uncaught_exceptions() > 0) return;
  if (cudaDeviceSynchronize() != cudaSuccess) spdlog::warn("freeing symmetric memory: the GPU's last work failed");
  if (window != nullptr) {
    const ncclResult_t result = ncclCommWindowDeregister(comm.get(), window);
    if (result != ncclSuccess) comm.log_failure(result, "ncclCommWindowDeregister");
  }
  const ncclResult_t result = ncclMemFree(memory);
  if (result != ncclSuccess) comm.log_failure(result, "ncclMemFree");
}

class NcclCommunicator final : public Communicator {
 public:
  NcclCommunicator(const World& world, Device& device, const NcclOptions& options)
      : rank_(world.rank()),
        size_(world.size()),
        device_(device),
        symmetric_(options.symmetric && can_be_symmetric(world)),
        comm_(std::make_shared<const NcclComm>(world, options.max_ctas)) {}

  ~NcclCommunicator() override {
    if (comm_.use_count() > 1) {
      spdlog::warn("NCCL communicator: {} of its buffers outlive it", comm_.use_count() - 1);
    }
  }

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }

  Buffer allocate(std::size_t bytes) override { return symmetric_ ? symmetric(bytes) : device_.allocate(bytes); }

  std::vector<void*> peer_addresses(const Buffer& memory) override {
    const auto found = windows_.find(memory.data());
    const auto window = found != windows_.end() ? found->second.lock() : nullptr;
    if (window == nullptr || *window == nullptr) return {};
    return nccl_peer_addresses(comm_->get(), *window, size_);
  }

  Ticket all_reduce_sum(const Tensor& values, Stream stream) override {
    comm_->check(ncclAllReduce(values.data, values.data, static_cast<std::size_t>(values.size()),
                               nccl_type(values.dtype), ncclSum, comm_->get(), cuda(stream)),
                 "ncclAllReduce");
    return next_++;
  }

  Ticket reduce_scatter_sum(const Tensor& values, Stream stream) override {
    const Tensor part = checked_part(values);
    comm_->check(ncclReduceScatter(values.data, part.data, static_cast<std::size_t>(part.size()),
                                   nccl_type(values.dtype), ncclSum, comm_->get(), cuda(stream)),
                 "ncclReduceScatter");
    return next_++;
  }

  Ticket all_gather(const Tensor& values, Stream stream) override {
    const Tensor part = checked_part(values);
    comm_->check(ncclAllGather(part.data, values.data, part.bytes(), ncclUint8, comm_->get(), cuda(stream)),
                 "ncclAllGather");
    return next_++;
  }

  bool test(Ticket) override { return true; }
  void wait(Ticket) override {}

  void broadcast(const Tensor& values, int root, Stream stream) override {
    comm_->check(ncclBroadcast(values.data, values.data, values.bytes(), ncclUint8, root, comm_->get(), cuda(stream)),
                 "ncclBroadcast");
  }

  void check_health() override {
    ncclResult_t state = ncclSuccess;
    comm_->check(ncclCommGetAsyncError(comm_->get(), &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) comm_->check(state, "A collective");
  }

  std::string library_version() const override { return "NCCL " + nccl_version(); }

 private:
  Tensor checked_part(const Tensor& values) const {
    const Tensor part = own_part(*this, values);
    DDP_CHECK(!symmetric_ || part.bytes() % kPartBytes == 0,
              "parts of {} bytes in symmetric memory: not a multiple of {}", part.bytes(), kPartBytes);
    return part;
  }
  static cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

  Buffer symmetric(std::size_t bytes) {
    constexpr std::size_t kUnit = NCCL_WIN_REQUIRED_ALIGNMENT;
    const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
    void* memory = nullptr;
    comm_->check(ncclMemAlloc(&memory, padded), "ncclMemAlloc");
    const auto window = std::make_shared<ncclWindow_t>(nullptr);
    windows_[memory] = window;
    Buffer buffer(memory, bytes, [comm = comm_, window](void* raw) { free_symmetric(*comm, *window, raw); });
    comm_->check(cudaMemset(memory, 0, padded), "cudaMemset");
    comm_->check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    comm_->check(ncclCommWindowRegister(comm_->get(), memory, padded, window.get(), NCCL_WIN_COLL_SYMMETRIC),
                 "ncclCommWindowRegister");
    if (*window == nullptr) spdlog::debug("NCCL has no symmetric memory on these GPUs; plain collectives are used");
    return buffer;
  }

  int rank_;
  int size_;
  Device& device_;
  bool symmetric_;
  std::shared_ptr<const NcclComm> comm_;
  std::map<const void*, std::weak_ptr<ncclWindow_t>> windows_;  ///< Of allocate().
  Ticket next_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Device& device, const NcclOptions& options) {
  if (device.kind() != DeviceKind::cuda) fail("make_nccl_communicator: NCCL carries GPU memory only");
  return std::make_unique<NcclCommunicator>(world, device, options);
}

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "unknown";
  return fmt::format("{}.{}.{}", code / 10000, code / 100 % 100, code % 100);
}

}  // namespace ddptrain
