#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/core/process/profiler_range.h"

/// The wait of this process and the collectives that it has called. A watchdog (runtime/diagnostics/watchdog.h) reads
/// them while the process may be stuck. Nothing here waits or allocates, but for health checks. Names are string
/// literals.

namespace ddptrain {

struct CollectiveRecord {
  std::uint64_t sequence = 0;  ///< From 1 on, in the order in which this process called them.
  const char* name = nullptr;
  int bucket = -1;  ///< Bucket of gradients; -1: none.
  std::uint64_t bytes = 0;
  std::uint64_t step = 0;     ///< Steps that were queued before it.
  std::int64_t queued = 0;    ///< Nanoseconds of std::chrono::steady_clock; 0: not yet, or not known.
  std::int64_t started = 0;   ///< Handed to the library.
  std::int64_t finished = 0;  ///< Known to have finished.
};

/// One thread writes, the one that calls MPI and the device; any thread reads.
class Watch {
 public:
  static constexpr std::size_t kRecords = 256;

  /// While it lives, this process waits for other ranks, or for a device that may wait for them. Nested ones: the
  /// innermost counts.
  class [[nodiscard]] Wait {
   public:
    Wait(Watch& watch, const char* what) : watch_(watch), outer_(watch.waiting_for_.load()) { watch.change(what); }
    ~Wait() { watch_.change(outer_); }
    Wait(const Wait&) = delete;
    Wait& operator=(const Wait&) = delete;

   private:
    Watch& watch_;
    const char* outer_;
  };

  /// A phase of the run, such as "training" or "evaluation", while the object lives. The innermost of nested phases is
  /// reported.
  class [[nodiscard]] Phase {
   public:
    Phase(Watch& watch, const char* name) : watch_(watch), outer_(watch.phase_.exchange(name)), range_(name) {
      watch.set_part(0, 0);
      if (watch.hang_in_ == name) hang();
    }
    ~Phase() {
      watch_.phase_ = outer_;
      watch_.set_part(0, 0);
    }
    Phase(const Phase&) = delete;
    Phase& operator=(const Phase&) = delete;

   private:
    Watch& watch_;
    const char* outer_;
    ProfilerRange range_;
  };

  /// A collective of this process, and the wait for its end.
  class [[nodiscard]] Collective {
   public:
    Collective(Watch& watch, const char* name, std::size_t bytes)
        : watch_(watch), sequence_(watch.queued(name, bytes)), wait_(watch, name) {
      watch.started(sequence_);
    }
    ~Collective() { watch_.finished(sequence_); }

   private:
    Watch& watch_;
    std::uint64_t sequence_;
    Wait wait_;
  };

  /// While it lives, a watchdog calls `check` now and then: it returns what is wrong, or nothing. Once the destructor
  /// returns, `check` is not called again.
  class [[nodiscard]] HealthCheck {
   public:
    HealthCheck(Watch& watch, std::function<std::string()> check);
    ~HealthCheck();
    HealthCheck(const HealthCheck&) = delete;
    HealthCheck& operator=(const HealthCheck&) = delete;

   private:
    Watch& watch_;
    std::list<std::function<std::string()>>::iterator check_;
  };

  /// How far the innermost phase has come, if that is known.
  struct Part {
    std::uint32_t done = 0;
    std::uint32_t total = 0;  ///< 0: not known.
  };
  void set_part(std::uint32_t done, std::uint32_t total) { part_ = Part{done, total}; }
  Part part() const { return part_; }

  /// The collectives that are queued next carry this bucket; -1: none.
  void set_bucket(int bucket) { bucket_ = bucket; }
  /// Records a collective; returns its sequence number.
  std::uint64_t queued(const char* name, std::size_t bytes);
  void started(std::uint64_t sequence);
  void finished(std::uint64_t sequence);
  /// The device has done all that was queued so far.
  void all_finished();

  void set_steps(std::uint64_t steps) { steps_ = steps_before_ = steps; }  ///< The run begins after these steps.
  void add_steps(std::uint64_t steps);                                     ///< They were queued.
  /// A count that the device keeps in host memory, of steps that have ended; null: none.
  void set_device_steps(const std::uint64_t* count) { device_steps_ = count; }

  /// From now on the process is to end with `code`, within seconds, whatever it waits for.
  void set_ending(int code) { ending_ = code; }

  /// For tests: hangs instead of beginning the phase of this name, or once so many steps have been queued.
  void hang_at(std::string phase, std::uint64_t steps) {
    hang_in_ = std::move(phase);
    hang_after_ = steps;
  }

  // --- for the watchdog -------------------------------------------------------------------------------------------
  const char* waiting_for() const { return waiting_for_; }  ///< Null: it computes.
  const char* phase() const { return phase_; }
  std::uint64_t changes() const { return changes_; }       ///< How often waiting_for() has changed.
  std::uint64_t steps() const { return steps_; }           ///< Queued.
  std::uint64_t collectives() const { return next_ - 1; }  ///< Called: the sequence number of the last one.
  std::uint64_t device_steps() const;                      ///< Ended, as the device counts; steps() if it does not.
  /// Whether the first step of this run has ended. If the device does not count steps, a second one must be queued.
  bool first_step_has_ended() const;
  std::string health() const;                              ///< Message of the first failing check; empty: all is well.
  int ending() const { return ending_; }                   ///< 0: not asked for.
  std::array<CollectiveRecord, kRecords> records() const;  ///< Unordered; sequence 0: none.

 private:
  struct Slot {
    std::atomic<std::uint64_t> sequence = 0;
    std::atomic<const char*> name = nullptr;
    std::atomic<int> bucket = -1;
    std::atomic<std::uint64_t> bytes = 0;
    std::atomic<std::uint64_t> step = 0;
    std::atomic<std::int64_t> queued = 0;
    std::atomic<std::int64_t> started = 0;
    std::atomic<std::int64_t> finished = 0;
  };

  [[noreturn]] static void hang();
  void change(const char* what);
  Slot* slot(std::uint64_t sequence);

  std::atomic<const char*> waiting_for_ = nullptr;
  std::atomic<const char*> phase_ = "start-up";
  std::atomic<Part> part_ = Part{};
  std::atomic<std::uint64_t> changes_ = 0;
  std::atomic<std::uint64_t> next_ = 1;  ///< Sequence number.
  std::atomic<int> bucket_ = -1;
  std::atomic<std::uint64_t> steps_ = 0;
  std::atomic<std::uint64_t> steps_before_ = 0;  ///< This run.
  std::atomic<const std::uint64_t*> device_steps_ = nullptr;
  std::atomic<int> ending_ = 0;
  std::string hang_in_;
  std::uint64_t hang_after_ = UINT64_MAX;
  std::uint64_t unfinished_ = 1;  ///< First sequence that all_finished() has not seen.
  std::array<Slot, kRecords> slots_;
  mutable std::mutex health_mutex_;
  std::list<std::function<std::string()>> health_checks_;
};

}  // namespace ddptrain
