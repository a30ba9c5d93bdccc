#include "tests/emulated/block.h"

#include <algorithm>
#include <numeric>
#include <stdexcept>
#include <utility>

namespace ddptrain::emulated {

namespace {

thread_local Block* running_block = nullptr;

}  // namespace

Block::Block(const Settings& settings)
    : settings_(settings), random_(settings.seed), exchanged_(static_cast<std::size_t>(settings_.threads)) {}

Block& Block::current() { return *running_block; }

void Block::fail(const std::string& what) {
  error_ = what;
  swapcontext(&self().context, &scheduler_);
  std::abort();  // not resumed
}

void Block::enter() {
  Block& block = current();
  block.kernel_();
  block.self().ended = true;
  ++block.ended_;
  swapcontext(&block.self().context, &block.scheduler_);
}

void Block::start_fibers() {
  fibers_.clear();
  for (int i = 0; i < settings_.threads; ++i) {
    auto fiber = std::make_unique<Fiber>();
    fiber->stack.resize(kStackBytes);
    getcontext(&fiber->context);
    fiber->context.uc_stack.ss_sp = fiber->stack.data();
    fiber->context.uc_stack.ss_size = fiber->stack.size();
    makecontext(&fiber->context, &Block::enter, 0);
    fibers_.push_back(std::move(fiber));
  }
}

void Block::run(const std::function<void()>& kernel) {
  kernel_ = kernel;
  running_block = this;
  start_fibers();
  std::vector<int> order(static_cast<std::size_t>(settings_.threads / kWarp));
  std::iota(order.begin(), order.end(), 0);
  while (ended_ < settings_.threads) {
    std::shuffle(order.begin(), order.end(), random_);
    bool moved = false;
    for (const int warp : order) {
      constexpr int kUntilItWaits = 1 << 30, kSome = 40;
      moved = run_warp(warp, random_() % 3 != 0 ? kUntilItWaits : static_cast<int>(1 + random_() % kSome)) || moved;
    }
    if (!moved) throw std::runtime_error("all threads wait");
  }
  running_block = nullptr;
}

/// Whether any of its threads moved.
bool Block::run_warp(int warp, int rounds) {
  bool moved = false;
  for (bool again = true; again && rounds > 0; --rounds) {
    again = false;
    for (int i = warp * kWarp; i < (warp + 1) * kWarp; ++i) {
      Fiber& fiber = *fibers_[static_cast<std::size_t>(i)];
      if (fiber.ended || (fiber.ready && !fiber.ready())) continue;
      fiber.ready = nullptr;
      running_ = i;
      swapcontext(&scheduler_, &fiber.context);
      if (!error_.empty()) throw std::runtime_error(error_);
      again = moved = true;
    }
  }
  return moved;
}

void Block::wait_until(std::function<bool()> ready) {
  if (ready()) return;
  self().ready = std::move(ready);
  swapcontext(&self().context, &scheduler_);
}

void Block::meet(int place, int threads) {
  Meeting& meeting = meetings_[place];
  const long mine = meeting.generation;
  if (++meeting.count == threads) {
    meeting.count = 0;
    ++meeting.generation;
    return;
  }
  wait_until([&meeting, mine] { return meeting.generation != mine; });
}

void Block::meet_warp() { meet(kWarpMeeting + running_ / kWarp, kWarp); }

void Block::Barrier::settle() {
  if (arrived < arrivals || bytes != 0) return;
  phase ^= 1;
  arrived = 0;
}

void Block::init_barrier(const void* barrier, int arrivals) { barriers_[barrier] = {.arrivals = arrivals}; }

void Block::arrive(const void* barrier, long bytes) {
  Barrier& b = barriers_.at(barrier);
  if (b.arrived == b.arrivals) fail("a thread arrives at a barrier whose phase has not ended");
  ++b.arrived;
  b.bytes += bytes;
  b.settle();
}

void Block::receive(const void* barrier, long bytes) {
  Barrier& b = barriers_.at(barrier);
  b.bytes -= bytes;
  b.settle();
}

void Block::await_phase(const void* barrier, int parity) {
  const Barrier& b = barriers_.at(barrier);
  wait_until([&b, parity] { return b.phase != parity; });
}

void Block::start_work(std::function<void()> work) {
  if (!settings_.work_late) return work();
  self().open_group.push_back(std::move(work));
}

void Block::end_group() { self().groups.push_back(std::exchange(self().open_group, {})); }

void Block::await_groups(std::size_t pending) {
  auto& groups = self().groups;
  for (; groups.size() > pending; groups.pop_front()) {
    for (const auto& work : groups.front()) work();
  }
}

}  // namespace ddptrain::emulated
