#include "runtime/core/process/signal_requests.h"

#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>

namespace ddptrain {
namespace {

constexpr std::array<int, 7> kSignals = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT, SIGHUP, SIGXCPU, SIGPIPE};
constexpr int kExitOfSecondInterrupt = 128 + SIGINT;

// A handler gets no other argument than the signal.
std::atomic<bool> checkpoint_asked{false};
std::atomic<int> end_asked{0};
std::array<struct sigaction, kSignals.size()> before;

static_assert(std::atomic<int>::is_always_lock_free, "handlers may use them");

/// Signals of the surroundings, which a user may have chosen to ignore.
bool may_be_ignored(int signal) { return signal == SIGHUP || signal == SIGXCPU || signal == SIGPIPE; }

/// Whether nobody reads standard output or standard error any more. A handler may call poll().
bool output_is_closed() {
  std::array<pollfd, 2> files = {{{STDOUT_FILENO, POLLOUT, 0}, {STDERR_FILENO, POLLOUT, 0}}};
  poll(files.data(), files.size(), 0);
  return ((files[0].revents | files[1].revents) & POLLERR) != 0;
}

/// SIGPIPE of a socket is none of ours: the library that writes there sees an error. After SIGHUP it is no news.
void note_closed_output() {
  const int error = errno;
  int none = 0;
  if (output_is_closed()) end_asked.compare_exchange_strong(none, SIGPIPE);
  errno = error;
}

void note(int signal) {
  if (signal == SIGPIPE) {
    note_closed_output();
    return;
  }
  if (signal == SIGUSR1) {
    checkpoint_asked = true;
    return;
  }
  const int earlier = end_asked.exchange(signal);
  if (signal == SIGINT && earlier == SIGINT) _exit(kExitOfSecondInterrupt);
}

}  // namespace

SignalRequests::SignalRequests() {
  checkpoint_asked = false;
  end_asked = 0;
  struct sigaction action {};
  action.sa_handler = note;
  action.sa_flags = SA_RESTART;
  sigemptyset(&action.sa_mask);
  for (std::size_t i = 0; i < kSignals.size(); ++i) {
    sigaction(kSignals[i], nullptr, &before[i]);
    const bool ignored = before[i].sa_handler == SIG_IGN;
    if (!ignored || !may_be_ignored(kSignals[i])) sigaction(kSignals[i], &action, nullptr);
  }
}

SignalRequests::~SignalRequests() {
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &before[i], nullptr);
  end_asked = 0;
}

bool SignalRequests::checkpoint() const { return checkpoint_asked; }
void SignalRequests::checkpoint_done() { checkpoint_asked = false; }
int SignalRequests::end() { return end_asked; }

std::string signal_name(int signal) {
  const char* name = sigabbrev_np(signal);
  return name == nullptr ? "a signal" : fmt::format("SIG{}", name);
}

}  // namespace ddptrain
