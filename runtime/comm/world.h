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

/// The ranks of the job, or some of them, connected by MPI. One thread calls MPI. The job's world initializes and
/// finalizes MPI: make it first in main and destroy it last. Every method but the accessors and abort() is
/// collective.
class World {
 public:
  /// `watch` records every wait for other ranks, also while MPI starts and ends.
  World(int* argc, char*** argv, std::shared_ptr<Watch> watch = std::make_shared<Watch>());
  /// A world of one rank without MPI, for work that sends nothing. It has no split() and no communicator of MPI.
  explicit World(std::shared_ptr<Watch> watch);
  ~World();
  /// A world of the ranks with the same `color`, in the order of their ranks here. It must be destroyed before this
  /// one.
  std::unique_ptr<World> split(int color) const;
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< Index among the ranks of this host.
  int local_size() const;
  int node() const;  ///< Number of the host. Hosts are ordered by their lowest rank.
  int nodes() const;
  const std::string& hostname() const;
  const std::shared_ptr<Watch>& watch() const;

  void barrier() const;
  /// A barrier for waits of seconds: waiting ranks sleep instead of spinning.
  void quiet_barrier() const;
  void broadcast(void* data, std::size_t bytes, int root) const;
  /// The texts of all ranks, together below 2 GiB.
  std::vector<std::string> all_gather(const std::string& mine) const;
  /// The values of all ranks, in the order of ranks. Ranks may have different numbers of values. T is copied as bytes.
  template <class T>
  std::vector<T> all_gather(const std::vector<T>& mine) const;
  double sum(double value) const;
  double max(double value) const;
  /// Calls `progress` while it waits, so that other messages of this rank make progress.
  double max(double value, const std::function<void()>& progress) const;
  double min(double value) const;

  /// Runs `check` on every rank. If it throws on some ranks, every rank throws the error of the lowest of them, with
  /// the same type (UsageError or Error) and message, marked as agreed().
  void agree(const std::function<void()>& check) const;

  /// Ends all ranks of the job at once. Does not return: if MPI does not end this process, a watchdog does.
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

/// The host of each rank, by an identity that the ranks of a host share. Hosts are numbered in the order of their
/// lowest rank.
std::vector<int> number_hosts(const std::vector<std::uint64_t>& identities);

/// Says which ranks have which value: "10 on ranks 0, 2-3; 20 on rank 1". Empty if all values are equal. With `hosts`,
/// hosts are named, too: "10 on ranks 0-1 (node1); 20 on ranks 2-5 (node2, node3)".
std::string differences(const std::vector<std::string>& of_ranks, const std::vector<std::string>& hosts = {});

/// Makes Open MPI start faster: without a daemon (orted) if there is no mpirun, without a search for GPUs and, if this
/// host has no RDMA network card, without a search for such cards. Environment variables that the user has set stay. It
/// changes the environment, so call it in the first line of main.
void shorten_mpi_start();

std::string mpi_version();

}  // namespace ddptrain
