#include "runtime/core/process/signal_requests.h"

#include <signal.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <utility>

namespace ddptrain {
namespace {

constexpr std::array<int, 4> kSignals = {SIGUSR1, SIGUSR2, SIGTERM, SIGINT};
constexpr int kExitOfSecondInterrupt = 128 + SIGINT;

// A handler gets no other argument than the signal.
std::atomic<bool> checkpoint_asked{false};
std::atomic<int> end_asked{0};
std::array<struct sigaction, kSignals.size()> before;

static_assert(std::atomic<int>::is_always_lock_free, "handlers may use them");

void note(int signal) {
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
  for (std::size_t i = 0; i < kSignals.size(); ++i) sigaction(kSignals[i], &action, &before[i]);
}

void SignalRequests::restore() {
  if (!std::exchange(noted_, false)) return;
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
