#include "runtime/comm/world.h"

#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <map>
#include <numeric>
#include <optional>
#include <set>
#include <thread>
#include <utility>

#include "runtime/comm/mpi/mpi_check.h"
#include "runtime/core/error.h"
#include "runtime/core/process/host.h"

namespace ddptrain {

namespace {

enum class Outcome : int { good, error, usage_error };

struct Verdict {
  Outcome outcome = Outcome::good;
  std::string message;
};

/// MPICH's launcher loses output that it has not read when a rank aborts. Waits at most a second until it has read all.
void wait_until_errors_are_read() {
  using namespace std::chrono;
  struct stat status {};
  if (::fstat(STDERR_FILENO, &status) != 0 || !S_ISFIFO(status.st_mode)) return;
  const auto end = steady_clock::now() + seconds(1);
  int unread = 0;
  while (::ioctl(STDERR_FILENO, FIONREAD, &unread) == 0 && unread > 0 && steady_clock::now() < end) {
    std::this_thread::sleep_for(milliseconds(1));
  }
}

Verdict outcome_of(const std::function<void()>& check) {
  try {
    check();
    return {};
  } catch (const UsageError& error) {
    return {Outcome::usage_error, error.what()};
  } catch (const std::exception& error) {
    return {Outcome::error, error.what()};
  }
}

/// "rank 3" or "ranks 0, 2-4". `ranks` ascend.
std::string rank_list(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t begin = 0; begin < ranks.size();) {
    std::size_t end = begin + 1;
    while (end < ranks.size() && ranks[end] == ranks[end - 1] + 1) ++end;
    text += fmt::format("{} {}", begin == 0 ? "" : ",", ranks[begin]);
    if (end - begin > 1) text += fmt::format("-{}", ranks[end - 1]);
    begin = end;
  }
  return text;
}

/// A hash of this host's name and boot. Nothing: the boot is not known.
std::optional<std::uint64_t> host_identity(const std::string& hostname) {
  const std::string boot = boot_id();
  return boot.empty() ? std::nullopt : std::optional(std::hash<std::string>()(hostname + ' ' + boot));
}

double reduce(double value, MPI_Op op, MPI_Comm comm, Watch& watch) {
  if (comm == MPI_COMM_NULL) return value;
  const Watch::Collective collective(watch, "reduction", sizeof(value));
  DDP_MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, op, comm));
  return value;
}

}  // namespace

struct World::Impl {
  Impl(MPI_Comm ranks, std::shared_ptr<Watch> told);
  explicit Impl(std::shared_ptr<Watch> told) : watch(std::move(told)), hostname(system_host_name()) {}

  std::shared_ptr<Watch> watch;
  MPI_Comm comm = MPI_COMM_NULL;  ///< Null: one rank without MPI.
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  int local_size = 1;
  int node = 0;
  int nodes = 1;
  std::string hostname;

  bool is_alone() const { return comm == MPI_COMM_NULL; }
  void find_nodes();
};

/// Ranks that share memory by MPI take the identity of the lowest of them. The identity joins ranks in containers,
/// which MPI may count as hosts, if the containers have the host's name.
void World::Impl::find_nodes() {
  MPI_Comm local = MPI_COMM_NULL;
  DDP_MPI_CHECK(MPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, MPI_INFO_NULL, &local));
  std::uint64_t identity = host_identity(hostname).value_or(static_cast<std::uint64_t>(rank));
  DDP_MPI_CHECK(MPI_Bcast(&identity, 1, MPI_UINT64_T, 0, local));
  DDP_MPI_CHECK(MPI_Comm_free(&local));

  std::vector<std::uint64_t> of_ranks(static_cast<std::size_t>(size));
  DDP_MPI_CHECK(MPI_Allgather(&identity, 1, MPI_UINT64_T, of_ranks.data(), 1, MPI_UINT64_T, comm));
  const std::vector<int> numbers = number_hosts(of_ranks);
  const auto here = numbers.begin() + rank;
  node = *here;
  nodes = 1 + *std::max_element(numbers.begin(), numbers.end());
  local_rank = static_cast<int>(std::count(numbers.begin(), here, node));
  local_size = static_cast<int>(std::count(numbers.begin(), numbers.end(), node));
}

World::Impl::Impl(MPI_Comm ranks, std::shared_ptr<Watch> told) : watch(std::move(told)), comm(ranks) {
  DDP_MPI_CHECK(MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN));
  DDP_MPI_CHECK(MPI_Comm_rank(comm, &rank));
  DDP_MPI_CHECK(MPI_Comm_size(comm, &size));
  char host[MPI_MAX_PROCESSOR_NAME];
  int length = 0;
  DDP_MPI_CHECK(MPI_Get_processor_name(host, &length));
  hostname.assign(host, static_cast<std::size_t>(length));
  find_nodes();
}

World::World(int* argc, char*** argv, std::shared_ptr<Watch> watch) {
  const Watch::Wait wait(*watch, "the start of MPI");
  int provided = MPI_THREAD_SINGLE;
  if (MPI_Init_thread(argc, argv, MPI_THREAD_FUNNELED, &provided) != MPI_SUCCESS) fail("MPI_Init_thread failed");
  if (provided < MPI_THREAD_FUNNELED) fail("This MPI library does not support threads (MPI_THREAD_FUNNELED)");
  impl_ = std::make_unique<Impl>(MPI_COMM_WORLD, watch);
}

World::World(std::shared_ptr<Watch> watch) : impl_(std::make_unique<Impl>(std::move(watch))) {}

World::World(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

World::~World() {
  // During an exception, other ranks may never reach MPI_Finalize. A rank that exits without it ends them, too.
  if (std::uncaught_exceptions() > 0 || impl_->is_alone()) return;
  const Watch::Phase phase(*impl_->watch, "end");
  // Open MPI 4.1's mpirun hangs or crashes if it ends ranks that are in MPI_Finalize. So the ranks meet here first.
  if (impl_->comm == MPI_COMM_WORLD) {
    const Watch::Collective collective(*impl_->watch, "barrier", 0);
    MPI_Barrier(impl_->comm);
  }
  const Watch::Wait wait(*impl_->watch, "the end of MPI");
  const int result = impl_->comm == MPI_COMM_WORLD ? MPI_Finalize() : MPI_Comm_free(&impl_->comm);
  if (result != MPI_SUCCESS) std::fprintf(stderr, "MPI could not end the ranks around rank %d\n", impl_->rank);
}

std::unique_ptr<World> World::split(int color) const {
  const Watch::Collective collective(*impl_->watch, "split of ranks", 0);
  MPI_Comm part = MPI_COMM_NULL;
  DDP_MPI_CHECK(MPI_Comm_split(impl_->comm, color, impl_->rank, &part));
  return std::unique_ptr<World>(new World(std::make_unique<Impl>(part, impl_->watch)));
}

MPI_Comm MpiAccess::comm(const World& world) { return world.impl_->comm; }

int World::rank() const { return impl_->rank; }
int World::size() const { return impl_->size; }
int World::local_rank() const { return impl_->local_rank; }
int World::local_size() const { return impl_->local_size; }
int World::node() const { return impl_->node; }
int World::nodes() const { return impl_->nodes; }
const std::string& World::hostname() const { return impl_->hostname; }
const std::shared_ptr<Watch>& World::watch() const { return impl_->watch; }

void World::barrier() const {
  if (impl_->is_alone()) return;
  const Watch::Collective collective(*impl_->watch, "barrier", 0);
  DDP_MPI_CHECK(MPI_Barrier(impl_->comm));
}

void World::quiet_barrier() const {
  if (impl_->is_alone()) return;
  using std::chrono::microseconds;
  max(0.0, [nap = microseconds{50}]() mutable {
    std::this_thread::sleep_for(nap);
    nap = std::min(2 * nap, microseconds{1000});
  });
}

void World::broadcast(void* data, std::size_t bytes, int root) const {
  if (impl_->is_alone()) return;
  const Watch::Collective collective(*impl_->watch, "broadcast", bytes);
  mpi_broadcast_bytes(data, bytes, root, impl_->comm);
}

std::vector<std::string> World::all_gather(const std::string& mine) const {
  if (impl_->is_alone()) return {mine};
  const Watch::Collective collective(*impl_->watch, "all-gather", mine.size());
  const std::uint64_t length = mine.size();
  std::vector<std::uint64_t> lengths(static_cast<std::size_t>(size()));
  DDP_MPI_CHECK(MPI_Allgather(&length, 1, MPI_UINT64_T, lengths.data(), 1, MPI_UINT64_T, impl_->comm));
  const std::uint64_t total = std::accumulate(lengths.begin(), lengths.end(), std::uint64_t{0});
  DDP_CHECK(total <= INT_MAX, "{} bytes from all ranks; MPI counts to 2^31 - 1", total);
  const std::vector<int> counts(lengths.begin(), lengths.end());
  std::vector<int> begins(counts.size());
  std::exclusive_scan(counts.begin(), counts.end(), begins.begin(), 0);
  std::string joined(total, '\0');
  const int count = counts[static_cast<std::size_t>(rank())];
  DDP_MPI_CHECK(
      MPI_Allgatherv(mine.data(), count, MPI_BYTE, joined.data(), counts.data(), begins.data(), MPI_BYTE, impl_->comm));
  std::vector<std::string> texts;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    texts.push_back(joined.substr(static_cast<std::size_t>(begins[i]), lengths[i]));
  }
  return texts;
}

double World::sum(double value) const { return reduce(value, MPI_SUM, impl_->comm, *impl_->watch); }
double World::max(double value) const { return reduce(value, MPI_MAX, impl_->comm, *impl_->watch); }

double World::max(double value, const std::function<void()>& progress) const {
  if (impl_->is_alone()) return value;
  const Watch::Collective collective(*impl_->watch, "reduction", sizeof(value));
  MPI_Request request = MPI_REQUEST_NULL;
  DDP_MPI_CHECK(MPI_Iallreduce(MPI_IN_PLACE, &value, 1, MPI_DOUBLE, MPI_MAX, impl_->comm, &request));
  for (int done = 0;;) {
    progress();
    DDP_MPI_CHECK(MPI_Test(&request, &done, MPI_STATUS_IGNORE));
    if (done != 0) return value;
    std::this_thread::yield();
  }
}

double World::min(double value) const { return reduce(value, MPI_MIN, impl_->comm, *impl_->watch); }

void World::agree(const std::function<void()>& check) const {
  Verdict verdict = outcome_of(check);
  int first = verdict.outcome == Outcome::good ? size() : rank();
  if (!impl_->is_alone()) {
    const Watch::Collective collective(*impl_->watch, "agreement", sizeof(first));
    DDP_MPI_CHECK(MPI_Allreduce(MPI_IN_PLACE, &first, 1, MPI_INT, MPI_MIN, impl_->comm));
  }
  if (first == size()) return;

  std::uint64_t length = verdict.message.size();
  broadcast(&verdict.outcome, sizeof(verdict.outcome), first);
  broadcast(&length, sizeof(length), first);
  verdict.message.resize(length);
  broadcast(verdict.message.data(), length, first);
  if (verdict.outcome == Outcome::usage_error) throw UsageError(verdict.message, true);
  throw Error(verdict.message, true);
}

void World::abort(int exit_code) const {
  impl_->watch->set_ending(exit_code);
  std::fflush(nullptr);
  wait_until_errors_are_read();
  if (!impl_->is_alone()) MPI_Abort(MPI_COMM_WORLD, exit_code);
  std::_Exit(exit_code);
}

std::vector<int> number_hosts(const std::vector<std::uint64_t>& identities) {
  std::map<std::uint64_t, int> numbers;
  std::vector<int> of_ranks;
  for (const std::uint64_t identity : identities) {
    of_ranks.push_back(numbers.try_emplace(identity, static_cast<int>(numbers.size())).first->second);
  }
  return of_ranks;
}

std::string differences(const std::vector<std::string>& of_ranks, const std::vector<std::string>& hosts) {
  std::vector<std::pair<std::string, std::vector<std::size_t>>> groups;  // by lowest rank
  for (std::size_t rank = 0; rank < of_ranks.size(); ++rank) {
    const auto group =
        std::find_if(groups.begin(), groups.end(), [&](const auto& known) { return known.first == of_ranks[rank]; });
    (group == groups.end() ? groups.emplace_back(of_ranks[rank], 0) : *group).second.push_back(rank);
  }
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += fmt::format("{}{} on {}", text.empty() ? "" : "; ", value, rank_list(ranks));
    std::set<std::string> names;
    for (const std::size_t rank : ranks) {
      if (!hosts.empty()) names.insert(hosts[rank]);
    }
    if (!names.empty()) text += fmt::format(" ({})", fmt::join(names, ", "));
  }
  return groups.size() > 1 ? text : "";
}

void shorten_mpi_start() {
  setenv("OMPI_MCA_ess_singleton_isolated", "1", 0);
  setenv("HWLOC_COMPONENTS", "-cuda,-nvml,-opencl,-gl", 0);
  // `cm` drives Omni-Path, EFA and Slingshot. It takes 0.2 s to find out that a host has no such card. `ucx` drives
  // InfiniBand. Debian switches it off in a file, which the variable replaces.
  using Entries = std::filesystem::directory_iterator;
  std::error_code no_folder;
  const bool has_card =
      Entries("/sys/class/infiniband", no_folder) != Entries() || std::filesystem::exists("/dev/cxi0");
  if (!has_card && std::getenv("OMPI_MCA_mtl") == nullptr) setenv("OMPI_MCA_pml", "^cm,ucx", 0);
}

std::string mpi_version() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  DDP_MPI_CHECK(MPI_Get_library_version(text, &length));
  const std::string version(text, static_cast<std::size_t>(length));
  return version.substr(0, version.find_first_of(",\n"));
}

}  // namespace ddptrain
