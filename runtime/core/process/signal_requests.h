#pragma once

#include <string>

#include "runtime/core/error.h"

namespace ddptrain {

/// A signal has ended the job in an orderly way; the same on all ranks. Programs leave with this code.
class EndedBySignal : public Error {
 public:
  EndedBySignal(const std::string& message, int exit_code) : Error(message, true), exit_code_(exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Requests by signals: SIGUSR1 for a checkpoint; SIGTERM, SIGINT, SIGUSR2, SIGHUP (a closed terminal), SIGXCPU (a
/// limit of CPU time) and SIGPIPE (the reader of the output has ended) for a checkpoint and the end. (mpirun forwards
/// SIGUSR1 and SIGUSR2 to the ranks, but answers SIGTERM and SIGINT by killing them.) While an object lives, these
/// signals are noted instead of ending the process; a second SIGINT ends it at once. SIGHUP, SIGXCPU and SIGPIPE stay
/// ignored if they were (nohup). One object at a time.
class SignalRequests {
 public:
  SignalRequests();
  ~SignalRequests();  ///< The signals mean again what they meant before.
  SignalRequests(const SignalRequests&) = delete;
  SignalRequests& operator=(const SignalRequests&) = delete;

  bool checkpoint() const;
  void checkpoint_done();  ///< Forgets the SIGUSR1 so far.
  /// The signal that asks the living object for the end; 0: none.
  static int end();
};

/// "SIGTERM".
std::string signal_name(int signal);

}  // namespace ddptrain
