#include "runtime/train/groups/outer_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <span>

#include "runtime/comm/agreed_signal.h"
#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/outer/redis.h"
#include "runtime/train/groups/outer_state.h"

namespace ddptrain {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kWaitSlice{100};           // between looks at signals while waiting
constexpr std::chrono::seconds kFirstNotice{10};  // of waiting until a line says for whom
constexpr std::chrono::seconds kLastWait{120};    // after the last step, for a log that fails

enum class Wait : std::uint8_t { give_up, go_on, done, lost };

bool is_asked_to_end() { return SignalRequests::end() != 0; }

std::vector<OuterParameter> parameters_of(const WholeWeights& weights) {
  std::vector<OuterParameter> parameters;
  for (const WholeWeights::Parameter& each : weights.parameters()) parameters.push_back({each.name, each.shape});
  return parameters;
}

/// Those that the arrays of the outer state depend on: "--outer-dtype int8, ...".
std::string outer_flags_of(const RunIdentity& run) {
  std::vector<std::string> flags;
  for (const char* name : {"--outer-dtype", "--outer-optimizer", "--outer-groups", "--outer-fragments"}) {
    const auto flag = run.flags.find(name);
    if (flag == run.flags.end()) continue;
    std::string value = flag->second;
    std::erase(value, '"');
    flags.push_back(fmt::format("{} {}", name, value));
  }
  return fmt::format("{}", fmt::join(flags, ", "));
}

}  // namespace

OuterLoop::OuterLoop(const OuterOptions& options, const GroupSettings& settings, std::int64_t steps,
                     const Trainer& trainer, const World& world, const Checkpoint* resumed)
    : options_(options),
      steps_(steps),
      world_(world),
      device_(trainer.device()),
      weights_(trainer.replica(), trainer.replicas().rank(), world),
      layout_{0, weights_.size(), options.fragments, options.codec},
      parts_(static_cast<std::size_t>(options.fragments)) {
  const bool is_first = world.rank() == 0;
  if (is_first) state_ = std::make_unique<OuterState>(options_, layout_, device_);
  if (resumed != nullptr) {
    restore(*resumed);
  } else {
    weights_.read(0, layout_.size, is_first ? state_->all(state_->weights) : std::span<float>{});
  }
  bool is_connected = true;
  world.agree([&] {
    if (!is_first) return;
    const std::string path = resumed != nullptr ? resumed->path.string() : "";
    is_connected = state_->connect(settings, parameters_of(weights_), parts_, path, is_asked_to_end);
  });
  if (world.min(is_connected ? 1.0 : 0.0) == 0.0) return;
  share_parts();
  if (options_.rule.groups == 0) {
    catch_up();
  } else if (is_first) {
    state_->log->start(state_->position_taken);
  }
  if (!is_first) return;
  for (std::int64_t i = 0; i < layout_.fragments; ++i) {
    if (parts_[static_cast<std::size_t>(i)].in_flight) state_->append(i);  // it may not have come to the log
  }
  state_->write_record(parts_);
}

OuterLoop::~OuterLoop() = default;

void OuterLoop::restore(const Checkpoint& checkpoint) {
  world_.agree([&] {
    if (world_.rank() != 0) return;
    OuterState& state = *state_;
    const std::string path = checkpoint.path.string();
    const auto& stored = checkpoint.manifest.arrays;
    const auto has = [&](const StateArray& array) {
      return std::ranges::any_of(
          stored, [&](const ArrayInfo& info) { return info.name == array.name && info.shape == array.shape(); });
    };
    const CheckpointReader reader(checkpoint);
    for (const StateArray& array : arrays()) {
      if (!has(array)) {
        usage_error("--resume {}: its outer state does not fit ({}). Continue with the --outer- flags of that run: {}.",
                    path, array.name, outer_flags_of(checkpoint.manifest.run));
      }
      auto* const to = array.pieces.at(0).values.as<std::uint8_t>();
      const auto element = static_cast<std::int64_t>(size_of(array.dtype));
      reader.read(array.name, 0, element_count(array.shape()), 0,
                  [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
                    std::memcpy(to + at * element, data, bytes);
                  });
    }
    state.read_record(path, parts_);
  });
}

void OuterLoop::share_parts() {
  std::vector<std::int64_t> values;
  for (const OuterPart& part : parts_) values.insert(values.end(), {part.in_flight ? 1 : 0, part.sent_at});
  if (world_.size() > 1) world_.broadcast(values.data(), values.size() * sizeof(std::int64_t), 0);
  for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i] = {values[2 * i] != 0, values[2 * i + 1]};
}

/// Without rounds: reads the log up to its present end, and takes the outer weights of fragments that are not in
/// flight. OuterState::sent has the outer weights from before.
void OuterLoop::catch_up() {
  const auto is_free = [&](std::int64_t fragment) { return !parts_[static_cast<std::size_t>(fragment)].in_flight; };
  world_.agree([&] {
    if (!state_) return;
    OuterState& state = *state_;
    std::string newest;
    try {
      newest = state.log->newest();
    } catch (const RedisInterrupted&) {
      return;
    }
    state.log->start(state.position_taken);
    while (is_later(newest, state.position_taken) && state.log->fault().empty() && !is_asked_to_end()) {
      state.log->wait(kWaitSlice);
      state.require_place();
      state.take_entries();
      for (std::int64_t i = 0; i < layout_.fragments; ++i) {
        if (is_free(i)) state.fold_all(i);
      }
    }
    state.tell(0, std::nullopt);
  });
  for (std::int64_t i = 0; i < layout_.fragments; ++i) {
    if (is_free(i)) take_outer_weights(i, true);
  }
}

std::int64_t OuterLoop::first_send(std::int64_t fragment) const {
  return (fragment + 1) * options_.steps / options_.fragments;
}

bool OuterLoop::sends_at(std::int64_t fragment, std::int64_t step) const {
  const std::int64_t since_first = step - first_send(fragment);
  return step > 0 && since_first >= 0 && since_first % options_.steps == 0;
}

std::int64_t OuterLoop::next_stop(std::int64_t step) const {
  std::int64_t next = steps_;
  for (std::int64_t fragment = 0; fragment < options_.fragments; ++fragment) {
    const std::int64_t send = first_send(fragment);
    for (const std::int64_t first : {send, send + options_.delay}) {
      const std::int64_t periods = step < first ? 0 : (step - first) / options_.steps + 1;
      next = std::min(next, first + periods * options_.steps);
    }
  }
  return std::max(next, step + 1);
}

std::optional<int> OuterLoop::exchange(std::int64_t step, std::optional<std::int64_t> kept) {
  const Watch::Phase phase(device_.watch(), "exchange");
  exchange_began_ = Clock::now();
  world_.agree([&] {
    if (!state_) return;
    state_->require_place();
    state_->take_entries();
  });
  std::optional<int> signal;
  for (std::int64_t fragment = 0; fragment < options_.fragments && !signal; ++fragment) {
    signal = exchange_fragment(fragment, step);
  }
  if (!state_) return signal;
  if (!signal && step == steps_ && std::ranges::any_of(parts_, &OuterPart::in_flight)) {
    const std::string fault = state_->log->fault();
    spdlog::warn(
        "The run ends before the log has this group's last difference{}: other groups lack it, and this one "
        "keeps its own weights",
        fault.empty() ? "" : fmt::format(" ({})", fault));
  }
  state_->write_record(parts_);
  state_->tell(step, kept);
  const bool is_finished = !signal && step == steps_ && options_.rule.groups > 0;
  if (is_finished) state_->registry->set_finished();
  return signal;
}

std::optional<int> OuterLoop::exchange_fragment(std::int64_t fragment, std::int64_t step) {
  const Clocked clocked(seconds_);
  const OuterPart& part = parts_[static_cast<std::size_t>(fragment)];
  const bool is_last = step == steps_;
  if (part.in_flight && (is_last || step >= part.sent_at + options_.delay)) {
    if (const std::optional<int> signal = merge(fragment, step)) return signal;
  }
  if (part.in_flight || step == part.sent_at || !(is_last || sends_at(fragment, step))) return std::nullopt;
  send(fragment, step);
  return is_last || options_.delay == 0 ? merge(fragment, step) : std::nullopt;
}

void OuterLoop::send(std::int64_t fragment, std::int64_t step) {
  const OuterLayout::Range range = layout_.range(fragment);
  weights_.read(range.begin, range.count(), state_ ? state_->floats(state_->sent, range) : std::span<float>{});
  world_.agree([&] {
    if (state_) state_->send(fragment, step);
  });
  parts_[static_cast<std::size_t>(fragment)] = {true, step};
}

/// Waits, as far as that is due, until the group's difference is a part of the outer weights, and takes them.
std::optional<int> OuterLoop::merge(std::int64_t fragment, std::int64_t step) {
  OuterPart& part = parts_[static_cast<std::size_t>(fragment)];
  const bool rounds = options_.rule.groups > 0;
  const bool must_wait = rounds || step == steps_;
  const Clock::time_point start = Clock::now();
  Clock::time_point notice = start + kFirstNotice;
  while (true) {
    Wait wait = Wait::give_up;
    if (state_) {
      OuterState& state = *state_;
      state.take_entries();
      const bool done = rounds ? state.fold_round(fragment) : state.fold_own(fragment);
      const bool fails = !state.log->fault().empty();
      const bool is_over = !rounds && fails && Clock::now() > exchange_began_ + kLastWait;
      const bool keeps_waiting = must_wait ? !is_over : options_.delay == 0 && !fails;
      wait = done ? Wait::done : keeps_waiting ? Wait::go_on : Wait::give_up;
      if (!done && !state.has_place()) wait = Wait::lost;
    }
    wait = static_cast<Wait>(world_.max(static_cast<double>(wait)));
    if (wait == Wait::give_up) return std::nullopt;
    if (wait == Wait::done) break;
    if (wait == Wait::lost) require_place();
    if (const std::optional<int> signal = agreed_end_signal(world_)) {
      return rounds || step < steps_ ? signal : std::nullopt;  // all is trained: the group keeps what it has
    }
    if (state_) state_->log->wait(kWaitSlice);
    if (state_ && !rounds) state_->tell(step, std::nullopt);  // a full log may wait for a snapshot of this group
    if (state_ && Clock::now() >= notice) {
      spdlog::info("Step {}: waiting for {} for {:.0f} s", step, state_->waiting_for(fragment),
                   std::chrono::duration<double>(Clock::now() - start).count());
      notice = Clock::now() + kFirstNotice;
    }
    if (world_.size() > 1) world_.quiet_barrier();
  }
  take_outer_weights(fragment, step != part.sent_at);
  part.in_flight = false;
  if (!state_) return std::nullopt;
  OuterState& state = *state_;
  ++state.exchanges;
  exchanges_.push_back({step, fragment, state.fold->version(fragment),
                        state.mine[static_cast<std::size_t>(fragment)].age, step - part.sent_at,
                        std::chrono::duration<double>(Clock::now() - start).count(), state.log->bytes_sent(),
                        state.log->bytes_received(), state.skipped});
  return std::nullopt;
}

/// Throws OuterState::require_place()'s error, which is that of rank 0, on all ranks.
void OuterLoop::require_place() {
  world_.agree([&] {
    if (state_) state_->require_place();
  });
}

/// `keep_since_sent`: adds what the group has learned since its weights were OuterState::sent.
void OuterLoop::take_outer_weights(std::int64_t fragment, bool keep_since_sent) {
  const OuterLayout::Range range = layout_.range(fragment);
  std::vector<float> values;
  if (state_) values.resize(static_cast<std::size_t>(range.count()));
  if (keep_since_sent) weights_.read(range.begin, range.count(), values);
  if (state_) {
    const std::span<const float> outer = state_->floats(state_->weights, range);
    const std::span<const float> sent = state_->floats(state_->sent, range);
    for (std::size_t i = 0; i < values.size(); ++i)
      values[i] = keep_since_sent ? outer[i] + (values[i] - sent[i]) : outer[i];
  }
  weights_.write(range.begin, range.count(), values);
}

OuterTotals OuterLoop::totals() const {
  if (!state_) return {};
  const OuterState& state = *state_;
  return {state.exchanges,         seconds_,
          state.log->bytes_sent(), state.log->bytes_received(),
          state.skipped,           hash_of(parameters_of(weights_), state.all(state.weights)),
          options_.rule.groups > 0};
}

std::vector<StateArray> OuterLoop::arrays() const {
  std::vector<StateArray> arrays;
  if (!state_) return arrays;
  const auto add = [&](const char* name, const Buffer& buffer, DType dtype) {
    const auto count = static_cast<std::int64_t>(buffer.bytes() / size_of(dtype));
    if (count == 0) return;
    arrays.push_back({name, Split::none({count}), dtype, Placement::sharded, {{0, buffer.view(dtype, {count})}}});
  };
  add("outer/weights", state_->weights, DType::f32);
  add("outer/velocity", state_->velocity, DType::f32);
  add("outer/residual", state_->residual, DType::f32);
  add("outer/sent", state_->sent, DType::f32);
  add("outer/payload", state_->payload, DType::u8);
  add("outer/record", state_->record, DType::u8);
  return arrays;
}

}  // namespace ddptrain
