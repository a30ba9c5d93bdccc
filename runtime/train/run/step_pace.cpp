#include "runtime/train/run/step_pace.h"

#include <algorithm>
#include <thread>

#include "runtime/device/queueing.h"
#include "runtime/train/step/step_graph.h"

namespace ddptrain {
namespace {

constexpr double kSeconds = 0.3;
constexpr std::int64_t kGrowth = 4;  // maximum from one piece to the next

void wait_for(Event& event) {
  using std::chrono::microseconds;
  for (microseconds nap{20}; !event.done(); nap = std::min(2 * nap, microseconds{500})) {
    std::this_thread::sleep_for(nap);
  }
}

}  // namespace

StepPace::StepPace(const World& world, Device& device, std::int64_t most)
    : world_(world), device_(device), most_(most) {}

bool StepPace::queued(std::int64_t steps) {
  left_ -= steps;
  if (left_ > 0) return false;
  {
    const Queueing queueing(device_);
    ends_.push_back(device_.mark(device_.compute_stream()));
  }
  if (ends_.size() > 1) {
    const Watch::Wait wait(device_.watch(), "the GPU's steps");
    wait_for(*ends_.front());
    ends_.pop_front();
  }
  return true;
}

void StepPace::next_piece() {
  const Clock::time_point now = Clock::now();
  const double mine = std::chrono::duration<double>(now - begin_).count();
  const double seconds = world_.max(mine, [this] { device_.progress(); });
  begin_ = now;
  // The device runs behind the host: this time was spent on the piece before.
  const double per_step = seconds / static_cast<double>(std::max<std::int64_t>(1, std::min(before_, piece_)));
  const std::int64_t most = std::min(most_, before_ == 0 ? 1 : kGrowth * piece_);
  before_ = piece_;
  piece_ = static_cast<std::int64_t>(std::clamp(kSeconds / per_step, 1.0, static_cast<double>(most)));
  const std::int64_t unroll = StepGraphOptions{}.unroll;
  if (piece_ > unroll) piece_ -= piece_ % unroll;
  left_ = piece_;
}

}  // namespace ddptrain
