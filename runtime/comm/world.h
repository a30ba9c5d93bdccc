#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace ddptrain {

/// The ranks of the job, over MPI (one thread calls MPI). Owns MPI's initialisation and end: make one, first in main,
/// destroy it last. Every method but the plain accessors is collective.
class World {
 public:
  World(int* argc, char*** argv);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  int rank() const;
  int size() const;
  int local_rank() const;  ///< Among the ranks of this host (MPI_Comm_split_type, shared memory).
  int local_size() const;
  int node() const;  ///< Hosts numbered by their lowest rank.
  int nodes() const;
  const std::string& hostname() const;

  void barrier() const;
  /// A barrier whose waiting ranks sleep instead of spinning, for waits of seconds.
  void quiet_barrier() const;
  void broadcast(void* data, std::size_t bytes, int root) const;
  std::vector<std::string> all_gather(const std::string& mine) const;
  double sum(double value) const;
  double max(double value) const;
  double min(double value) const;

  /// Runs `check` on every rank. Where it throws on some, every rank throws the message of the lowest such rank, as
  /// the same kind of error (UsageError or Error).
  void agree(const std::function<void()>& check) const;

  /// Ends all ranks at once; does not return.
  [[noreturn]] void abort(int exit_code) const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

std::string mpi_version();

}  // namespace ddptrain
