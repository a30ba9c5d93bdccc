#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/outer/log_address.h"
#include "runtime/outer/snapshot.h"

/// What the server knows of a run besides its log: settings, groups, snapshots.

namespace ddptrain {

class LogOutage;

/// A group's place in the run. After claim(), a thread with a connection of its own keeps the name of the group, tells
/// how far the group has come, and writes snapshots. Methods are called by one thread.
class RunRegistry {
 public:
  struct Options {
    std::string group;
    std::int64_t rounds_of = 0;       ///< Groups of each synchronous round; 0: no rounds.
    std::size_t most_groups = 0;      ///< Of the run. In rounds: rounds_of.
    std::int64_t snapshot_every = 0;  ///< Versions between two snapshots; 0: none, and the log keeps all entries.
    /// With fewer free bytes in the server, entries are removed at once, and the older snapshot, and a new snapshot is
    /// due.
    std::uint64_t scarce = 0;
  };

  /// Connects; waits while the server reads its file. Methods before training throw UsageError, naming the address, if
  /// the server does not answer or refuses, and RedisInterrupted once `is_interrupted` returns true. `outage` outlives
  /// the object.
  RunRegistry(LogAddress address, Options options, LogOutage& outage, std::function<bool()> is_interrupted);
  ~RunRegistry();  ///< Gives the name of the group back. Waits up to a second or two for the server.
  RunRegistry(const RunRegistry&) = delete;
  RunRegistry& operator=(const RunRegistry&) = delete;

  // --- Before training ---

  /// The settings of the run, if a group has set them.
  std::optional<std::string> settings();
  /// The same; the first group sets them to `mine`.
  std::string settings(const std::string& mine);
  bool is_finished();
  /// Makes the group one of the run's. UsageError, with the names of the groups, if the run has its groups already: a
  /// group is one of them for ever.
  void join();
  /// Takes the name of the group. If a job has it, waits until that must have given a sign of life. UsageError that
  /// names the job if it has.
  void claim();
  /// The oldest position from which the log can be read. Empty: all entries are there.
  std::string trimmed();
  /// The newest first. Nothing if their list is damaged.
  std::optional<std::vector<SnapshotHead>> snapshots();
  /// Nothing if the values are missing or damaged. Allocates head.bytes.
  std::optional<std::string> values_of(const SnapshotHead& head);

  // --- While training ---

  /// After an outage, the server has not the run any more, or has another one of its name.
  bool has_lost_run() const;
  /// The job that has taken the name of the group since, while this one gave no sign of life; empty: none.
  std::string other_holder() const;
  /// The group has come to `version`, and needs no entry up to `position` again, also after a failure. Nothing: what
  /// was said before, in this job or the one before, still holds.
  void publish(const std::optional<std::string>& position, std::uint64_t version);
  /// Whether this group is to call write_snapshot().
  bool wants_snapshot() const;
  /// Writes it in the thread. Then entries are removed from the log that no snapshot and no present group needs.
  /// SnapshotHead::id, bytes and checksum are set here.
  void write_snapshot(SnapshotHead head, std::string values);
  /// Notes that the run is finished, on a connection of its own. A warning if the server does not take it.
  void set_finished();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain
