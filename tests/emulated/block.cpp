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
    : settings_(settings),
      random_(settings.seed),
      ended_of_block_(static_cast<std::size_t>(settings_.blocks)),
      started_blocks_(static_cast<std::size_t>(settings_.blocks)),
      exchanged_(static_cast<std::size_t>(settings_.blocks * settings_.threads)),
      unfenced_(static_cast<std::size_t>(settings_.blocks) * kMostShared / 16) {}

Block& Block::current() { return *running_block; }

void Block::fail(const std::string& what) {
  error_ = what;
  swapcontext(&self().context, &scheduler_);
  std::abort();  // not resumed
}

void Block::enter() {
  Block& block = current();
  block.started_blocks_[static_cast<std::size_t>(block.rank())] = true;
  block.kernel_();
  if (!block.self().stores.empty()) block.fail("a thread ends without waiting for its stores");
  block.self().ended = true;
  ++block.ended_;
  ++block.ended_of_block_[static_cast<std::size_t>(block.rank())];
  swapcontext(&block.self().context, &block.scheduler_);
}

void Block::start_fibers() {
  fibers_.clear();
  for (int i = 0; i < settings_.blocks * settings_.threads; ++i) {
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
  const int threads = settings_.blocks * settings_.threads;
  std::vector<int> order(static_cast<std::size_t>(threads / kWarp));
  std::iota(order.begin(), order.end(), 0);
  const auto random_block = [&] { return static_cast<int>(random_() % static_cast<unsigned>(settings_.blocks + 1)); };
  const auto random_warp = [&] { return static_cast<int>(random_() % static_cast<unsigned>(2 * order.size())); };
  int slow_block = random_block();  // none if it is the number of blocks
  int slow_warp = random_warp();    // none if it is too large
  while (ended_ < threads) {
    std::shuffle(order.begin(), order.end(), random_);
    if (random_() % 8 == 0) slow_block = random_block();
    if (random_() % 64 == 0) slow_warp = random_warp();
    const auto is_slow = [&](int warp) {
      return warp == slow_warp || (settings_.blocks > 1 && warp * kWarp / settings_.threads == slow_block);
    };
    std::stable_partition(order.begin(), order.end(), [&](int warp) { return !is_slow(warp); });
    bool moved = false;
    for (const int warp : order) {
      if (moved && is_slow(warp)) break;  // it runs when the others wait
      constexpr int kUntilItWaits = 1 << 30, kSome = 40;
      moved = run_warp(warp, random_() % 3 != 0 ? kUntilItWaits : static_cast<int>(1 + random_() % kSome)) || moved;
      moved = end_copies(false) || moved;
    }
    if (!moved && late_ == 0 && !end_copies(true)) throw std::runtime_error(describe_waits());
  }
  check_end();
  running_block = nullptr;
}

std::string Block::describe_waits() const {
  std::map<std::string, int> waits;
  for (const auto& fiber : fibers_) {
    if (!fiber->ended) ++waits[fiber->awaits];
  }
  std::string all = "all threads wait:";
  for (const auto& [what, count] : waits) all += " " + std::to_string(count) + " for " + what + ";";
  return all;
}

void Block::check_end() {
  if (!copies_.empty()) throw std::runtime_error("a copy is under way when the kernel ends");
  for (const auto& [address, barrier] : barriers_) {
    if (barrier.bytes != 0) throw std::runtime_error("a barrier waits for bytes when the kernel ends");
  }
}

/// Whether any of its threads moved. Now and then it ends before the last ones did, as threads of a warp may part.
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
      if (random_() % 256 == 0) return true;
    }
  }
  return moved;
}

void Block::wait_until(const char* what, std::function<bool()> ready) {
  if (ready()) return;
  self().awaits = what;
  self().ready = std::move(ready);
  swapcontext(&self().context, &scheduler_);
}

/// Now and then the running thread goes on much later than others.
void Block::give_way_at_times() {
  if (random_() % 4 != 0) return;
  ++late_;
  wait_until("nothing", [this, rounds = static_cast<int>(random_() % 64)]() mutable { return rounds-- <= 0; });
  --late_;
}

Block::Arrival Block::arrive(int block, int place, int threads) {
  Meeting& meeting = meetings_[{block, place}];
  const Arrival arrival{&meeting, meeting.generation};
  if (++meeting.count == threads) {
    meeting.count = 0;
    ++meeting.generation;
  }
  return arrival;
}

void Block::meet(int block, int place, int threads, const char* whom) {
  wait_until(whom, [arrival = arrive(block, place, threads)] { return arrival.has_ended(); });
}

void Block::await_cluster() {
  wait_until("its cluster", [arrival = self().at_cluster] { return arrival.has_ended(); });
}

char* Block::there(int block, const void* address) {
  if (has_ended(block)) fail("a thread uses a block that has ended");
  if (!has_started(block)) fail("a thread uses a block that may not have started");
  return shared_memory(block) + (static_cast<const char*>(address) - shared_memory());
}

Block::Barrier& Block::barrier_at(const void* address) {
  const auto found = barriers_.find(address);
  if (found == barriers_.end()) fail("a thread uses a barrier that is not initialised");
  return found->second;
}

void Block::Barrier::settle() {
  if (arrived < arrivals || bytes != 0) return;
  phase ^= 1;
  arrived = 0;
}

void Block::init_barrier(const void* barrier, int arrivals) { barriers_[barrier] = {.arrivals = arrivals}; }

void Block::arrive(const void* barrier, long bytes) {
  Barrier& b = barrier_at(barrier);
  if (b.arrived == b.arrivals) fail("a thread arrives at a barrier whose phase has not ended");
  ++b.arrived;
  b.bytes += bytes;
  b.settle();
  give_way_at_times();
}

void Block::start_copy(int block, const void* barrier, long bytes, std::function<void()> copy) {
  if (has_ended(block)) fail("a thread copies to a block that has ended");
  barrier_at(barrier);
  copies_.push_back({barrier, bytes, std::move(copy), random_() % 8 == 0});
  if (random_() % 2 == 0 && !copies_.back().is_slow) end_copy(copies_.size() - 1);
}

void Block::end_copy(std::size_t index) {
  const Copy copy = std::exchange(copies_[index], copies_.back());
  copies_.pop_back();
  copy.work();
  Barrier& b = barriers_.at(copy.barrier);
  b.bytes -= copy.bytes;
  b.settle();
}

/// Some of those under way. Whether any ended.
bool Block::end_copies(bool must_end_one) {
  const std::size_t before = copies_.size();
  if (must_end_one && before > 0) end_copy(random_() % before);
  for (std::size_t i = copies_.size(); i-- > 0;) {
    if (random_() % 8 == 0 && !copies_[i].is_slow) end_copy(i);
  }
  return copies_.size() < before;
}

void Block::await_phase(const void* barrier, int parity) {
  const Barrier& b = barrier_at(barrier);
  wait_until("a phase of a barrier in shared memory", [&b, parity] { return b.phase != parity; });
}

void Block::note_write(const char* row) {
  ++unfenced_[row_of(row)];
  self().unfenced.push_back(row_of(row));
}

void Block::fence_writes() {
  for (const std::size_t row : std::exchange(self().unfenced, {})) --unfenced_[row];
}

void Block::require_same_in_warpgroup(std::uint64_t value) {
  const std::pair call{running_ / (4 * kWarp), self().compared++};
  if (of_warpgroup_.try_emplace(call, value).first->second != value) {
    fail("the warps of a warpgroup multiply different operands");
  }
}

void Block::await_stores_read() {
  give_way_at_times();
  for (Store& store : self().stores) {
    if (store.read) continue;
    for (std::size_t i = 0; i < store.bytes; i += 16) require_fenced(store.from + i);
    store.read = std::vector<char>(store.from, store.from + store.bytes);
  }
}

void Block::await_stores() {
  await_stores_read();
  for (const Store& store : std::exchange(self().stores, {})) std::ranges::copy(*store.read, store.to);
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
