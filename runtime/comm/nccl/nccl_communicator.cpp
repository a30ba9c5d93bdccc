#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/comm/nccl/nccl_compat.h"
#include "runtime/comm/nccl/nccl_peer_addresses.h"
#include "runtime/comm/nccl/peer_copies.h"
#include "runtime/comm/nccl/refusal.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain {

namespace {

/// Collectives hang if ranks have different values of these variables.
constexpr const char* kSharedSettings[] = {"NCCL_ALGO", "NCCL_PROTO"};

bool is_set(const char* name) { return std::getenv(name) != nullptr; }

/// The variables among `names` that are set, as "NCCL_ALGO=Tree, NCCL_PROTO=LL".
template <class Names>
std::string values_of(const Names& names) {
  std::string text;
  for (const char* name : names) {
    if (is_set(name)) text += fmt::format("{}{}={}", text.empty() ? "" : ", ", name, std::getenv(name));
  }
  return text;
}

std::string settings() {
  const std::string text = values_of(kSharedSettings);
  return text.empty() ? "neither NCCL_ALGO nor NCCL_PROTO set" : text;
}

/// All ranks throw a UsageError if their settings differ.
void require_same_settings(const World& world) {
  const std::string difference = differences(world.all_gather(settings()));
  world.agree([&] {
    if (difference.empty()) return;
    usage_error("NCCL needs the same settings on all ranks: {} (mpirun -x NAME hands a variable on)", difference);
  });
}

/// An NCCL communicator, with the names for its error messages. Buffers in its windows keep it alive.
class NcclComm {
 public:
  NcclComm(const World& world, int comm_ctas) : rank_(world.rank()), host_(world.hostname()), watch_(world.watch()) {
    require_same_settings(world);
    ncclUniqueId id{};
    world.agree([&] {
      if (rank_ != 0) return;
      const ncclResult_t result = ncclGetUniqueId(&id);
      if (is_refusal(result)) usage_error("{}", nccl_refusal("does not start", reason(result)));
      check(result, "ncclGetUniqueId");
    });
    world.broadcast(&id, sizeof(id), 0);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3)
    config.commName = "ddptrain";
#endif
    if (comm_ctas > 0) {
      config.maxCTAs = comm_ctas;
      config.cgaClusterSize = 0;  // a cluster would wait for free multiprocessors that are neighbours
    }
    const ncclResult_t result = start(world, id, config);
    if (!is_refusal(result)) check(result, "ncclCommInitRankConfig");
    if (world.min(result == ncclSuccess ? 1.0 : 0.0) > 0.0) return;
    const std::vector<std::string> places = world.all_gather(place(world));
    world.agree([&] {
      if (result != ncclSuccess) usage_error("{}", nccl_does_not_start(loaded_version(), places, reason(result)));
    });
  }

  ~NcclComm() {
    if (comm_ == nullptr) return;
    health_check_.reset();
    const Watch::Wait wait(*watch_, "the end of NCCL");
    // With an exception on its way up, peers may be gone: abort ends the kernels that wait for them.
    const bool failed = std::uncaught_exceptions() > 0;
    const ncclResult_t result = failed ? ncclCommAbort(comm_) : ncclCommDestroy(comm_);
    if (result != ncclSuccess) log_failure(result, failed ? "ncclCommAbort" : "ncclCommDestroy");
  }

  NcclComm(const NcclComm&) = delete;
  NcclComm& operator=(const NcclComm&) = delete;

  ncclComm_t get() const { return comm_; }
  Watch& watch() const { return *watch_; }

  void check(ncclResult_t result, const char* call) const {
    if (result != ncclSuccess) throw Error(message(result, call));
  }

  /// Throws a UsageError unless NCCL has accepted the call. The message is "NCCL", `what` and the settings.
  void require_accepted(ncclResult_t result, const char* what) const {
    if (result != ncclSuccess) usage_error("{}", nccl_refusal(what, reason(result)));
  }

  void check(cudaError_t result, const char* call) const {
    if (result != cudaSuccess) fail("{} failed on rank {} ({}): {}", call, rank_, host_, cudaGetErrorString(result));
  }

  void log_failure(ncclResult_t result, const char* call) const { spdlog::warn("{}", message(result, call)); }

 private:
  ncclResult_t start(const World& world, const ncclUniqueId& id, ncclConfig_t& config) {
    const Watch::Collective collective(*watch_, "start of NCCL", 0);
    const ncclResult_t result = ncclCommInitRankConfig(&comm_, world.size(), id, rank_, &config);
    if (result == ncclSuccess) health_check_.emplace(*watch_, [this] { return health(); });
    return result;
  }

  /// Called by the watchdog's thread.
  std::string health() const {
    ncclResult_t state = ncclSuccess;
    if (ncclCommGetAsyncError(comm_, &state) != ncclSuccess) return {};
    return state == ncclSuccess || state == ncclInProgress ? std::string() : message(state, "A collective");
  }

  /// Whether NCCL refuses because of the settings. Then all ranks get the same result.
  static bool is_refusal(ncclResult_t result) { return result == ncclInvalidUsage || result == ncclInvalidArgument; }

  /// Of this rank.
  std::string place(const World& world) const {
    int gpu = 0;
    std::array<char, 32> bus{};
    check(cudaGetDevice(&gpu), "cudaGetDevice");
    check(cudaDeviceGetPCIBusId(bus.data(), static_cast<int>(bus.size()), gpu), "cudaDeviceGetPCIBusId");
    return nccl_place(world.node(), bus.data());
  }

  int loaded_version() const {
    int version = 0;
    check(ncclGetVersion(&version), "ncclGetVersion");
    return version;
  }

  std::string reason(ncclResult_t result) const {
    const char* detail = ncclGetLastError(comm_);
    const bool known = detail != nullptr && *detail != '\0';
    return fmt::format("{}{}{}", ncclGetErrorString(result), known ? ": " : "", known ? detail : "");
  }

  std::string message(ncclResult_t result, const char* call) const {
    return fmt::format("{} failed on rank {} ({}): {}. NCCL_DEBUG=INFO shows more.", call, rank_, host_,
                       reason(result));
  }

  int rank_;
  std::string host_;
  std::shared_ptr<Watch> watch_;
  ncclComm_t comm_ = nullptr;
  std::optional<Watch::HealthCheck> health_check_;
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

/// The variable that lets no GPU reach another on any machine, as NCCL reads it; empty: none. Not seen: levels that
/// only PCIe makes too small, and variables of /etc/nccl.conf.
std::string keeps_gpus_apart() {
  const char* disable = std::getenv("NCCL_P2P_DISABLE");
  if (disable != nullptr && std::strtol(disable, nullptr, 0) == 1) return "NCCL_P2P_DISABLE";
  const char* level = std::getenv("NCCL_P2P_LEVEL");
  const bool is_lowest = level != nullptr && (std::string_view(level) == "LOC" || std::string_view(level) == "0");
  return is_lowest ? "NCCL_P2P_LEVEL" : "";
}

/// Why symmetric memory is not used; empty if NCCL can be asked for it. Symmetric kernels need a single node in NCCL's
/// view, and ignore the algorithm and protocol of the user. NCCL maps memory of peers even if a variable lets no GPU
/// reach another, and then sums without symmetric kernels. All ranks get the same text.
std::string why_not_to_ask(const World& world, bool wanted) {
  if (!wanted) return "symmetric memory is off";
  if (!kHasSymmetricWindows) return "this program was compiled with an NCCL older than 2.27.3";
  if (world.size() == 1) return "one rank";
  std::string mine;
  for (const char* name : {"NCCL_ALGO", "NCCL_PROTO", "NCCL_HOSTID"}) {
    if (is_set(name)) mine += fmt::format("{}{}", mine.empty() ? "" : ", ", name);
  }
  if (mine.empty()) mine = keeps_gpus_apart();
  for (const std::string& names : world.all_gather(mine)) {
    if (!names.empty()) return names + (names.find(',') == std::string::npos ? " is set" : " are set");
  }
  return world.nodes() > 1 ? "ranks on several nodes" : "";
}

/// Says that NCCL maps no memory of peers, and with which settings.
std::string why_not_mapped() {
  const std::string set = values_of(std::array{"NCCL_P2P_LEVEL", "NCCL_P2P_DISABLE", "NCCL_P2P_DIRECT_DISABLE",
                                               "NCCL_CUMEM_ENABLE", "NCCL_WIN_ENABLE"});
  return "NCCL maps no memory of other ranks" + (set.empty() ? "" : " with " + set);
}

void free_symmetric(const NcclComm& comm, ncclWindow_t window, void* memory) {
  // During an exception, queued work may wait for lost peers, so waiting for it would hang. The process is about to
  // end.
  if (std::uncaught_exceptions() > 0) return;
  const Watch::Wait wait(comm.watch(), "the release of symmetric memory");
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
  NcclCommunicator(const World& world, Device& device, const CommunicatorOptions& options)
      : world_(world),
        device_(device),
        comm_(std::make_shared<const NcclComm>(world, most_ctas(options.comm_ctas, device.options().ranks))),
        why_not_symmetric_(why_not_to_ask(world, options.symmetric)) {
    if (is_set("NCCL_ALGO") || is_set("NCCL_PROTO")) try_collectives(options.scatters_sums);
    if (why_not_symmetric_.empty()) try_window();
    if (options.copy_engines) try_copies();
  }

  ~NcclCommunicator() override {
    copies_.reset();
    if (comm_.use_count() > 1) {
      spdlog::warn("NCCL communicator: {} of its buffers outlive it", comm_.use_count() - 1);
    }
  }

  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  int rank() const override { return world_.rank(); }
  int size() const override { return world_.size(); }
  bool symmetric() const override { return why_not_symmetric_.empty(); }
  std::string why_not_symmetric() const override { return why_not_symmetric_; }

  Buffer allocate(std::size_t bytes) override {
    DDP_CHECK(!captured_->is_freed || !registers_what_graphs_send(),
              "memory of this communicator was freed after a graph had captured collectives: make a communicator for "
              "each trainer, or set NCCL_GRAPH_REGISTER=0");
    const auto memory = std::make_shared<Buffer>(symmetric() ? allocate_symmetric(bytes) : device_.allocate(bytes));
    return {memory->data(), bytes, [memory, captured = captured_](void*) { captured->is_freed = captured->any; }};
  }

  PeerMemory allocate_for_peers(std::size_t bytes) override {
    if (!symmetric() || !on_all_ranks(bytes > 0)) return {};
    Window window = allocate_window(std::max(bytes, static_cast<std::size_t>(size()) * sizeof(std::uint64_t)));
    PeerMemory memory{std::move(window.memory), nccl_peer_addresses(comm_->get(), *window.handle, size())};
    if (!on_all_ranks(!memory.of_rank.empty())) return {};
    const bool good = peers_exchange(memory.of_rank, rank(), [this] { world_.barrier(); });
    if (on_all_ranks(good)) return memory;
    if (rank() == 0) spdlog::warn("GPUs do not reach each other's memory although NCCL has mapped it");
    return {};
  }

  bool choose_algorithm(const std::string& name) override {
    const Buffer memory = device_.allocate(sizeof(float));
    const auto result =
        all_reduce_by(name, memory.data(), memory.data(), 1, ncclFloat, comm_->get(), cuda(device_.compute_stream()));
    device_.synchronize();
    if (!on_all_ranks(result == ncclSuccess)) return false;
    algorithm_ = name;
    return true;
  }

  Ticket all_reduce_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    note("all-reduce", to.bytes());
    comm_->check(all_reduce_by(algorithm_, from.data, to.data, static_cast<std::size_t>(from.size()),
                               nccl_type(from.dtype), comm_->get(), cuda(stream)),
                 "ncclAllReduce");
    return next_++;
  }

  Ticket reduce_sum(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    note("reduce", to.bytes());
    comm_->check(ncclReduce(from.data, to.data, static_cast<std::size_t>(from.size()), nccl_type(from.dtype), ncclSum,
                            root, comm_->get(), cuda(stream)),
                 "ncclReduce");
    return next_++;
  }

  Ticket reduce_scatter_sum(const Tensor& from, const Tensor& to, Stream stream) override {
    note("reduce-scatter", to.bytes());
    check_shard(to);
    comm_->check(ncclReduceScatter(from.data, to.data, static_cast<std::size_t>(to.size()), nccl_type(from.dtype),
                                   ncclSum, comm_->get(), cuda(stream)),
                 "ncclReduceScatter");
    return next_++;
  }

  Ticket all_gather(const Tensor& from, const Tensor& to, Stream stream) override {
    note("all-gather", to.bytes());
    if (from.data == own_shard(*this, to).data && copies_into(to)) {
      copies_->gather_shards(to, stream);
      return next_++;
    }
    check_shard(from);
    comm_->check(ncclAllGather(from.data, to.data, from.bytes(), ncclUint8, comm_->get(), cuda(stream)),
                 "ncclAllGather");
    return next_++;
  }

  /// Uses sends and receives, because only NCCL 2.28 and newer have an all-to-all.
  Ticket all_to_all(const Tensor& from, const Tensor& to, Stream stream) override {
    note("all-to-all", to.bytes());
    const std::size_t bytes = own_shard(*this, from).bytes();
    comm_->check(ncclGroupStart(), "ncclGroupStart");
    for (int peer = 0; peer < size(); ++peer) {
      const std::size_t at = static_cast<std::size_t>(peer) * bytes;
      comm_->check(ncclSend(from.as<char>() + at, bytes, ncclUint8, peer, comm_->get(), cuda(stream)), "ncclSend");
      comm_->check(ncclRecv(to.as<char>() + at, bytes, ncclUint8, peer, comm_->get(), cuda(stream)), "ncclRecv");
    }
    comm_->check(ncclGroupEnd(), "ncclGroupEnd");
    return next_++;
  }

  Ticket swap_shards(const Tensor& from, const Tensor& to, Stream stream) override {
    if (!copies_into(to)) return all_to_all(from, to, stream);
    note("exchange of shards", to.bytes());
    copies_->swap_shards(from, to, stream);
    return next_++;
  }

  Ticket gather_after_swap(const std::vector<Tensor>& all, Stream stream) override {
    if (!std::ranges::all_of(all, [&](const Tensor& to) { return copies_into(to); })) {
      return Communicator::gather_after_swap(all, stream);
    }
    for (const Tensor& to : all) note("all-gather", to.bytes());
    copies_->gather_after_swap(all, stream);
    return next_++;
  }

  bool copies_into(const Tensor& to) const override { return copies_ && copies_->reach(to); }

  Ticket exchange(const std::vector<Message>& sends, const std::vector<Message>& receives, Stream stream) override {
    note("exchange", receives.empty() ? 0 : receives.front().values.bytes());
    comm_->check(ncclGroupStart(), "ncclGroupStart");
    for (const auto& [values, rank] : sends) {
      comm_->check(ncclSend(values.data, values.bytes(), ncclUint8, rank, comm_->get(), cuda(stream)), "ncclSend");
    }
    for (const auto& [values, rank] : receives) {
      comm_->check(ncclRecv(values.data, values.bytes(), ncclUint8, rank, comm_->get(), cuda(stream)), "ncclRecv");
    }
    comm_->check(ncclGroupEnd(), "ncclGroupEnd");
    return next_++;
  }

  bool test(Ticket) override { return true; }
  void wait(Ticket) override {}

  /// Uses MPI if NCCL_ALGO is set, because an algorithm for sums may not exist for broadcasts.
  Ticket broadcast(const Tensor& from, const Tensor& to, int root, Stream stream) override {
    if (is_set("NCCL_ALGO")) {
      std::vector<char> host(to.bytes());
      if (rank() == root) device_.copy_to_host(host.data(), from.data, host.size());
      world_.broadcast(host.data(), host.size(), root);
      device_.copy_to_device(to.data, host.data(), host.size());
      return next_++;
    }
    note("broadcast", to.bytes());
    comm_->check(ncclBroadcast(from.data, to.data, to.bytes(), ncclUint8, root, comm_->get(), cuda(stream)),
                 "ncclBroadcast");
    return next_++;
  }

  void check_health() override {
    ncclResult_t state = ncclSuccess;
    comm_->check(ncclCommGetAsyncError(comm_->get(), &state), "ncclCommGetAsyncError");
    if (state != ncclInProgress) comm_->check(state, "A collective");
  }

  std::string library() const override { return "NCCL"; }

 private:
  /// The maximum of thread blocks: `wanted` (0: NCCL chooses), or fewer if ranks share the device.
  static int most_ctas(int wanted, int ranks) {
    const int most = cuda::most_waiting_blocks(ranks);
    return wanted == 0 || most == 0 ? std::max(wanted, most) : std::min(wanted, most);
  }

  void note(const char* name, std::size_t bytes) {
    device_.watch().started(device_.watch().queued(name, bytes));
    captured_->any = captured_->any || cuda::is_capturing(cuda(device_.compute_stream()));
  }
  static bool registers_what_graphs_send() {
    const char* value = std::getenv("NCCL_GRAPH_REGISTER");
    return value == nullptr || *value == '\0' || std::strtol(value, nullptr, 0) != 0;
  }
  void check_shard(const Tensor& shard) const {
    const bool is_symmetric = copies_ ? copies_->reach(shard) : symmetric();
    DDP_CHECK(!is_symmetric || shard.bytes() % kShardBytes == 0,
              "shards of {} bytes in symmetric memory: not a multiple of {}", shard.bytes(), kShardBytes);
  }
  static cudaStream_t cuda(Stream stream) { return static_cast<cudaStream_t>(stream.handle); }

  bool on_all_ranks(bool mine) const { return world_.min(mine ? 1.0 : 0.0) > 0.0; }

  /// Calls each kind of collective once, in memory of the device. If NCCL_ALGO and NCCL_PROTO rule one out, NCCL only
  /// says so in the call.
  void try_collectives(bool scatters_sums) {
    const Buffer memory = device_.allocate(static_cast<std::size_t>(size()) * kShardBytes);
    const Tensor values = memory.view(DType::f32, {static_cast<std::int64_t>(memory.bytes() / sizeof(float))});
    const Tensor shard = own_shard(*this, values);
    const cudaStream_t stream = cuda(device_.compute_stream());
    world_.agree([&] {
      comm_->require_accepted(ncclAllReduce(values.data, values.data, static_cast<std::size_t>(values.size()),
                                            ncclFloat, ncclSum, comm_->get(), stream),
                              "cannot all-reduce");
      if (!scatters_sums) return;
      comm_->require_accepted(ncclReduceScatter(values.data, shard.data, static_cast<std::size_t>(shard.size()),
                                                ncclFloat, ncclSum, comm_->get(), stream),
                              "cannot reduce-scatter, which --zero 1 and --virtual-ranks need,");
      comm_->require_accepted(ncclAllGather(shard.data, values.data, shard.bytes(), ncclUint8, comm_->get(), stream),
                              "cannot all-gather, which --zero 1 and --virtual-ranks need,");
    });
    device_.synchronize();
  }

  void try_window() {
    const Window window = allocate_window(1);
    if (!on_all_ranks(is_symmetric(*window.handle))) why_not_symmetric_ = why_not_mapped();
  }

  /// Sets copies_ if copy engines swap a few values.
  void try_copies() {
    PeerMemory flags = allocate_for_peers(PeerCopies::flag_bytes(static_cast<std::size_t>(size())));
    if (flags.of_rank.empty() || !on_all_ranks(PeerCopies::are_supported())) return;
    copies_.emplace(rank(), std::move(flags));
    const Shape shape{size()};
    const Buffer from = allocate(static_cast<std::size_t>(size()) * sizeof(float)), to = allocate(from.bytes());
    const auto number = [&](int sender, int receiver) { return static_cast<float>(1 + sender * size() + receiver); };
    std::vector<float> values;
    for (int peer = 0; peer < size(); ++peer) values.push_back(number(rank(), peer));
    device_.copy_to_device(from.data(), values.data(), from.bytes());
    if (!copies_->reach(to.view(DType::f32, shape))) return copies_.reset();
    copies_->swap_shards(from.view(DType::f32, shape), to.view(DType::f32, shape), device_.exchange_stream(0));
    device_.copy_to_host(values.data(), to.data(), to.bytes());  // waits for all streams
    bool good = true;
    for (int peer = 0; peer < size(); ++peer) {
      good = good && (peer == rank() || values[static_cast<std::size_t>(peer)] == number(peer, rank()));
    }
    if (on_all_ranks(good)) return;
    if (rank() == 0) spdlog::warn("Copy engines do not reach other GPUs' memory. NCCL exchanges split layers.");
    copies_.reset();
  }

  /// Throws OutOfMemory if the GPU has fewer than `bytes` bytes free. NCCL has no error code for that.
  static void require_room(std::size_t bytes) {
    cudaGetLastError();
    std::size_t free = 0;
    std::size_t total = 0;
    if (cudaMemGetInfo(&free, &total) != cudaSuccess || free >= bytes) return;
    throw OutOfMemory(fmt::format("{} were asked for by ncclMemAlloc: the GPU is out of memory; {} of {} are free",
                                  size_text(bytes), size_text(free), size_text(total)));
  }

  Buffer allocate_symmetric(std::size_t bytes) {
    Window window = allocate_window(bytes);
    DDP_CHECK(is_symmetric(*window.handle), "NCCL gave a window of {} bytes that is not symmetric", bytes);
    if (copies_) {
      std::vector<void*> addresses = nccl_peer_addresses(comm_->get(), *window.handle, size());
      if (on_all_ranks(!addresses.empty())) copies_->add(window.memory, std::move(addresses), window.handle);
    }
    return std::move(window.memory);
  }

  struct Window {
    Buffer memory;
    std::shared_ptr<ncclWindow_t> handle;  ///< The memory keeps it alive.
  };

  Window allocate_window(std::size_t bytes) {
    constexpr std::size_t kUnit = NCCL_WIN_REQUIRED_ALIGNMENT;
    const std::size_t padded = (std::max<std::size_t>(bytes, 1) + kUnit - 1) / kUnit * kUnit;
    const Watch::Collective collective(device_.watch(), "registration of symmetric memory", bytes);
    void* memory = nullptr;
    const ncclResult_t allocated = ncclMemAlloc(&memory, padded);
    if (allocated != ncclSuccess) require_room(padded);
    comm_->check(allocated, "ncclMemAlloc");
    const auto handle = std::make_shared<ncclWindow_t>(nullptr);
    Buffer buffer(memory, bytes, [comm = comm_, handle](void* raw) { free_symmetric(*comm, *handle, raw); });
    comm_->check(cudaMemset(memory, 0, padded), "cudaMemset");
    comm_->check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    comm_->check(ncclCommWindowRegister(comm_->get(), memory, padded, handle.get(), NCCL_WIN_COLL_SYMMETRIC),
                 "ncclCommWindowRegister");
    return {std::move(buffer), handle};
  }

  /// Of memory of allocate(), whose registrations NCCL keeps when a graph has captured them.
  struct Captured {
    bool any = false;
    bool is_freed = false;
  };

  const World& world_;
  Device& device_;
  std::shared_ptr<const NcclComm> comm_;
  std::shared_ptr<Captured> captured_ = std::make_shared<Captured>();
  std::string why_not_symmetric_;
  std::string algorithm_;
  std::optional<PeerCopies> copies_;
  Ticket next_ = 0;
};

}  // namespace

std::unique_ptr<Communicator> make_nccl_communicator(const World& world, Device& device,
                                                     const CommunicatorOptions& options) {
  if (device.kind() != DeviceKind::cuda) fail("make_nccl_communicator: NCCL carries GPU memory only");
  return std::make_unique<NcclCommunicator>(world, device, options);
}

std::string nccl_version() {
  int code = 0;
  if (ncclGetVersion(&code) != ncclSuccess) return "unknown";
  return nccl_version_text(code);
}

std::string nccl_library() {
  Dl_info info{};
  const bool found = dladdr(reinterpret_cast<const void*>(&ncclGetVersion), &info) != 0;
  return found && info.dli_fname != nullptr ? info.dli_fname : "";
}

}  // namespace ddptrain
