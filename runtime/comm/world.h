#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "runtime/core/process/watch.h"

namespace ddptrain {

/// The ranks of the job, or a part of them, over MPI (one thread calls MPI). That of the whole job owns MPI's
/// initialisation and end: make one, first in main, destroy it last. Every method but the plain accessors is
/// collective.
class World {
 public:
  /// `watch` is told of every wait for other ranks, those for the start and the end of MPI included.
  World(int* argc, char*** argv, std::shared_ptr<Watch> watch = std::make_shared<Watch>());
  ~World();
  /// The ranks that give the same `color`, in the order of their ranks here, as a world of their own: communicators can
  /// be made of it. It ends before this one.
  std::unique_ptr<World> split(int color) const;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< Among the ranks of this host (see number_hosts).
  int local_size() const;
  int node() const;  ///< Hosts numbered by their lowest rank.
  int nodes() const;
  const std::string& hostname() const;
  const std::shared_ptr<Watch>& watch() const;

  void barrier() const;
  /// A barrier whose waiting ranks sleep instead of spinning, for waits of seconds.
  void quiet_barrier() const;
  void broadcast(void* data, std::size_t bytes, int root) const;
  /// The texts of all ranks, of any length: on rank 0 (empty elsewhere), on all ranks.
  std::vector<std::string> gather(const std::string& mine) const;
  std::vector<std::string> all_gather(const std::string& mine) const;
  /// The values of all ranks, as many as each has, one rank's behind the other's. T is copied as bytes.
  template <class T>
  std::vector<T> all_gather(const std::vector<T>& mine) const;
  double sum(double value) const;
  double max(double value) const;
  /// Calls `progress` while it waits, so that messages of others make progress.
  double max(double value, const std::function<void()>& progress) const;
  double min(double value) const;

  /// Runs `check` on every rank. Where it throws on some, every rank throws the message of the lowest such rank, as
  /// the same kind of error (UsageError or Error), marked as agreed().
  void agree(const std::function<void()>& check) const;

  /// Ends all ranks of the job at once; does not return. Where MPI cannot, a watchdog ends this process.
  [[noreturn]] void abort(int exit_code) const;

 private:
  struct Impl;
  explicit World(std::unique_ptr<Impl> impl);
  friend struct MpiAccess;

  std::unique_ptr<Impl> impl_;
};

template <class T>
std::vector<T> World::all_gather(const std::vector<T>& mine) const {
  static_assert(std::is_trivially_copyable_v<T>);
  std::vector<T> all;
  for (const std::string& of_rank : all_gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(T)})) {
    const std::size_t before = all.size();
    all.resize(before + of_rank.size() / sizeof(T));
    if (!of_rank.empty()) std::memcpy(all.data() + before, of_rank.data(), of_rank.size());
  }
  return all;
}

/// Where a rank runs.
struct HostOfRank {
  int lowest_rank = 0;         ///< Of those that MPI counts to the same host (MPI_COMM_TYPE_SHARED).
  std::uint64_t identity = 0;  ///< Of host name and boot; 0: unknown.
};

/// The host of each rank, numbered by their lowest ranks. Two ranks are on one host where MPI says so, or where host
/// name and boot are the same: so they are in containers with a rank each, which MPI may take for hosts, as long as
/// these have the name of the host.
std::vector<int> number_hosts(const std::vector<HostOfRank>& ranks);

/// What ranks hold, where it is not the same: "10 on ranks 0, 2-3; 20 on rank 1". Else empty. With `hosts`, those of
/// the ranks are named, too: "10 on ranks 0-1 (node1); 20 on ranks 2-5 (node2, node3)".
std::string differences(const std::vector<std::string>& of_ranks, const std::vector<std::string>& hosts = {});

std::string mpi_version();

}  // namespace ddptrain
