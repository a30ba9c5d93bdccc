#include "runtime/train/groups/outer_loop.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>
#include <map>
#include <optional>
#include <span>

#include "runtime/comm/agreed_signal.h"
#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"
#include "runtime/outer/record.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr milliseconds kWaitSlice{100};           // between looks at signals while waiting
constexpr std::chrono::seconds kFirstNotice{10};  // of waiting until a line says for whom
constexpr milliseconds kFlushTime{2000};          // for the last entries of a run that ends early
constexpr std::size_t kRecordBytes = std::size_t{1} << 20;
constexpr std::size_t kEntryOverhead = 512;                   // bytes of an entry besides its payload, at most
constexpr std::size_t kMostPayload = std::size_t{256} << 20;  // Redis takes 512 MB, launch/outer-log sets 300
constexpr std::size_t kMostSettings = std::size_t{1} << 16;
constexpr int kMostFaultLines = 5;  // warnings about one group's entries

enum class Wait : std::uint8_t { give_up, go_on, done };

std::string text_of(const OuterLoop::Settings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}\t{}\n", printable(name), printable(value, 200));
  return text;
}

std::map<std::string, std::string> settings_in(std::string_view text) {
  std::map<std::string, std::string> settings;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t tab = line.find('\t');
    if (tab != line.npos) settings[printable(line.substr(0, tab))] = printable(line.substr(tab + 1), 200);
  }
  return settings;
}

/// UsageError that names the settings in which the run of the log differs.
void require_same_settings(const OuterLoop::Settings& mine, const std::string& of_run, const std::string& name) {
  if (of_run == text_of(mine)) return;
  std::map<std::string, std::string> others;
  if (of_run.size() <= kMostSettings) others = settings_in(of_run);
  std::vector<std::string> differences;
  for (const auto& [setting, value] : mine) {
    const auto found = others.find(printable(setting));
    const std::string other = found == others.end() ? "none" : found->second;
    if (other != printable(value, 200))
      differences.push_back(fmt::format("{}: {} (in the log: {})", setting, printable(value, 200), other));
  }
  if (differences.empty()) differences.push_back("the log's settings are of another version of the program");
  usage_error(
      "the run {} in the log has other settings than this group: {}. Use the same, or another name for a new run.",
      name, fmt::join(differences, "; "));
}

std::vector<OuterParameter> parameters_of(const WholeWeights& weights) {
  std::vector<OuterParameter> parameters;
  for (const WholeWeights::Parameter& each : weights.parameters()) parameters.push_back({each.name, each.shape});
  return parameters;
}

}  // namespace

/// Rank 0's copy of the outer state, its connection to the log, and what has come from there.
struct OuterLoop::State {
  State(const OuterOptions& options, const OuterLayout& layout, Device& device);

  std::span<float> floats(const Buffer& buffer, OuterLayout::Range range) const {
    return {static_cast<float*>(buffer.data()) + range.begin, static_cast<std::size_t>(range.count())};
  }
  std::span<float> all(const Buffer& buffer) const {
    return {static_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)};
  }
  std::uint8_t* payload_of(std::int64_t fragment) const;
  std::size_t payload_bytes(std::int64_t fragment) const {
    return encoded_bytes(layout.codec, layout.range(fragment).count());
  }
  void append(std::int64_t fragment);
  void take_entries();
  bool fold_round(std::int64_t fragment);
  bool fold_own(std::int64_t fragment);
  void fold_all(std::int64_t fragment);
  OuterFold::Outcome add(std::int64_t fragment);
  void note_fault(const std::string& group, const std::string& what);
  std::string position() const;
  void write_record(const std::vector<Part>& parts);
  std::string waiting_for(std::int64_t fragment) const;

  struct Received {
    std::int64_t number;  ///< In the order of the log.
    std::string before;   ///< Position before this entry.
    std::string bytes;
    OuterEntry entry;  ///< Of `bytes`. A deque never moves it.
  };
  struct Sent {
    std::uint64_t round = 0;
    std::uint64_t base = 0;  ///< The version of the outer weights that the group trains from.
    std::uint64_t age = 0;
  };

  const OuterOptions& options;
  const OuterLayout& layout;
  Buffer weights, velocity;
  Buffer residual;  ///< Rounding errors of what was sent.
  Buffer sent;      ///< The group's weights when it sent its last difference.
  Buffer payload;   ///< The last differences.
  Buffer record;
  std::optional<OuterFold> fold;
  std::optional<LogClient> log;
  std::optional<OuterRecorder> recorder;
  std::vector<std::deque<Received>> received;  ///< By fragment. In rounds, entries stay until their round is complete.
  std::vector<std::size_t> added;              ///< The first ones, which the fold has got.
  std::vector<Sent> mine;
  std::string position_taken;  ///< Of the last entry of the log that was taken.
  std::int64_t taken = 0;
  std::int64_t skipped = 0;
  std::int64_t exchanges = 0;
  std::map<std::string, int> fault_lines;
  std::string initial;  ///< Hash of the weights before the first step.
};

OuterLoop::State::State(const OuterOptions& options, const OuterLayout& layout, Device& device)
    : options(options), layout(layout) {
  const std::size_t bytes = static_cast<std::size_t>(layout.size) * sizeof(float);
  weights = device.allocate_pinned(bytes);
  if (options.rule.optimizer == OuterOptimizer::nesterov) velocity = device.allocate_pinned(bytes);
  residual = device.allocate_pinned(bytes);
  sent = device.allocate_pinned(bytes);
  std::size_t payload_size = 0;
  for (std::int64_t i = 0; i < layout.fragments; ++i) payload_size += payload_bytes(i);
  payload = device.allocate_pinned(payload_size);
  record = device.allocate_pinned(kRecordBytes);
  received.resize(static_cast<std::size_t>(layout.fragments));
  added.resize(received.size());
  mine.resize(received.size());
  fold.emplace(options.rule, layout, all(weights), all(velocity));
}

std::uint8_t* OuterLoop::State::payload_of(std::int64_t fragment) const {
  std::size_t at = 0;
  for (std::int64_t i = 0; i < fragment; ++i) at += payload_bytes(i);
  return static_cast<std::uint8_t*>(payload.data()) + at;
}

/// Sends the payload of a fragment.
void OuterLoop::State::append(std::int64_t fragment) {
  const Sent& of = mine[static_cast<std::size_t>(fragment)];
  const OuterEntry entry{
      layout.run,
      options.group,
      of.round,
      of.base,
      static_cast<std::uint32_t>(fragment),
      std::string_view(reinterpret_cast<const char*>(payload_of(fragment)), payload_bytes(fragment))};
  log->append(write_entry(entry, layout));
}

void OuterLoop::State::note_fault(const std::string& group, const std::string& what) {
  ++skipped;
  int& lines = fault_lines[fault_lines.size() < OuterFold::kMostGroups ? group : ""];
  if (++lines > kMostFaultLines) return;
  spdlog::warn("An entry of the log{} is skipped: {}{}", group.empty() ? "" : " of group " + group, what,
               lines == kMostFaultLines ? ". More of this group are skipped without a line" : "");
}

/// Checks what has come from the log, and puts it in the queue of its fragment.
void OuterLoop::State::take_entries() {
  for (LogClient::Entry& from_log : log->take()) {
    const std::string before = std::exchange(position_taken, from_log.id);
    auto parsed = parse_entry(from_log.bytes, layout);
    if (const auto* fault = std::get_if<EntryFault>(&parsed)) {
      note_fault(fault->group, fmt::format("{} ({})", fault->what, printable(from_log.id)));
      continue;
    }
    OuterEntry& entry = std::get<OuterEntry>(parsed);
    const auto at = static_cast<std::size_t>(entry.payload.data() - from_log.bytes.data());
    Received& queued =
        received[entry.fragment].emplace_back(Received{taken++, before, std::move(from_log.bytes), std::move(entry)});
    queued.entry.payload = std::string_view(queued.bytes).substr(at, queued.entry.payload.size());
  }
}

/// Adds the first entry in the queue of a fragment that has not been added yet.
OuterFold::Outcome OuterLoop::State::add(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  const Received& next = received[part][added[part]++];
  const OuterEntry& entry = next.entry;
  const OuterFold::Outcome outcome = fold->add(entry);
  if (recorder) recorder->add(next.bytes);
  switch (outcome) {
    case OuterFold::Outcome::applied:
    case OuterFold::Outcome::waits:
    case OuterFold::Outcome::repeated:
      break;
    default:
      note_fault(entry.group, fmt::format("it {} (version {} of the outer weights, now {})", text_of(outcome),
                                          entry.base, fold->version(fragment)));
  }
  return outcome;
}

/// Adds entries until the round is complete that the group trains in. Whether it is.
bool OuterLoop::State::fold_round(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  while (fold->version(fragment) == mine[part].base && added[part] < received[part].size()) add(fragment);
  if (fold->version(fragment) == mine[part].base) return false;
  received[part].erase(received[part].begin(), received[part].begin() + static_cast<std::ptrdiff_t>(added[part]));
  added[part] = 0;
  return true;
}

/// Without rounds: adds all entries that have come, if the group's own difference is among them. Whether it is.
bool OuterLoop::State::fold_own(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  const bool has_come = std::ranges::any_of(received[part], [&](const Received& each) {
    return each.entry.group == options.group && each.entry.round >= mine[part].round;
  });
  if (has_come) fold_all(fragment);
  return has_come;
}

void OuterLoop::State::fold_all(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  while (!received[part].empty()) {
    const bool is_mine = received[part].front().entry.group == options.group;
    if (add(fragment) == OuterFold::Outcome::applied && is_mine) mine[part].age = fold->last_age(fragment);
    received[part].pop_front();
    added[part] = 0;
  }
}

/// From which a later run must read on.
std::string OuterLoop::State::position() const {
  const Received* first = nullptr;
  for (const auto& queue : received) {
    if (!queue.empty() && (first == nullptr || queue.front().number < first->number)) first = &queue.front();
  }
  return first == nullptr ? position_taken : first->before;
}

void OuterLoop::State::write_record(const std::vector<Part>& parts) {
  nlohmann::json json = {{"fold", fold->record()}, {"position", position()}, {"initial", initial}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    json["parts"].push_back({parts[i].in_flight, parts[i].sent_at, mine[i].round, mine[i].base});
  }
  const std::string text = json.dump();
  if (text.size() > kRecordBytes) fail("the record of the outer state takes {} bytes of {}", text.size(), kRecordBytes);
  std::memset(record.data(), ' ', kRecordBytes);
  std::memcpy(record.data(), text.data(), text.size());
}

std::string OuterLoop::State::waiting_for(std::int64_t fragment) const {
  if (const std::string fault = log->fault(); !fault.empty()) return fmt::format("the log ({})", fault);
  if (options.rule.groups == 0) return "the log";
  const std::vector<std::string> missing = fold->missing(fragment);
  if (!missing.empty()) return fmt::format("{} {}", missing.size() == 1 ? "group" : "groups", fmt::join(missing, ", "));
  return fmt::format("groups that have not started yet (--outer-groups {})", options.rule.groups);
}

OuterLoop::OuterLoop(const OuterOptions& options, const Settings& settings, std::int64_t steps, const Trainer& trainer,
                     const World& world, const Checkpoint* resumed)
    : options_(options),
      steps_(steps),
      world_(world),
      device_(trainer.device()),
      weights_(trainer.replica(), trainer.replicas().rank(), world),
      layout_{0, weights_.size(), options.fragments, options.codec},
      parts_(static_cast<std::size_t>(options.fragments)) {
  const bool is_first = world.rank() == 0;
  if (is_first) state_ = std::make_unique<State>(options_, layout_, device_);
  if (resumed != nullptr) {
    restore(*resumed);
  } else {
    weights_.read(0, layout_.size, is_first ? state_->all(state_->weights) : std::span<float>{});
  }
  const std::vector<OuterParameter> parameters = parameters_of(weights_);
  world.agree([&] {
    if (!is_first) return;
    State& state = *state_;
    if (resumed == nullptr) state.initial = hash_of(parameters, state.all(state.weights));
    Settings all = settings;
    all.emplace_back("the hash of the initial weights", state.initial);
    LogAddress address = parse_log_address(options_.address);
    const std::string name = address.name;
    std::size_t largest = 0;
    for (std::int64_t i = 0; i < layout_.fragments; ++i) largest = std::max(largest, state.payload_bytes(i));
    if (largest > kMostPayload) {
      usage_error("--outer-fragments {}: a difference has {}, and an entry of the log at most {}. Give at least {}.",
                  layout_.fragments, size_text(largest), size_text(kMostPayload),
                  static_cast<std::size_t>(layout_.fragments) * (largest / kMostPayload + 1));
    }
    state.log.emplace(std::move(address), largest + kEntryOverhead);
    require_same_settings(all, state.log->settings(text_of(all)), name);
    if (options_.rule.groups > 0 && resumed == nullptr && state.log->is_finished()) {
      usage_error(
          "the run {} in the log is finished, so nothing that this group trains would count. Give a new run another "
          "name in --outer, or continue from a checkpoint with --resume.",
          name);
    }
    const std::string text = text_of(all);
    layout_.run = xxh3_128_value(text.data(), text.size())[0];
    if (!options_.record.empty()) {
      state.recorder.emplace(options_.record, OuterRecordHead{options_.rule, layout_, parameters, state.fold->record()},
                             state.all(state.weights), state.all(state.velocity));
    }
  });
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

OuterLoop::~OuterLoop() {
  if (state_ && state_->log) state_->log->flush(kFlushTime);
}

void OuterLoop::restore(const Checkpoint& checkpoint) {
  world_.agree([&] {
    if (world_.rank() != 0) return;
    State& state = *state_;
    const std::string path = checkpoint.path.string();
    const auto& stored = checkpoint.manifest.arrays;
    const auto has = [&](const StateArray& array) {
      return std::ranges::any_of(
          stored, [&](const ArrayInfo& info) { return info.name == array.name && info.shape == array.shape(); });
    };
    const CheckpointReader reader(checkpoint);
    for (const StateArray& array : arrays()) {
      if (!has(array)) {
        usage_error("--resume {}: it has no {} that fits: it was written without --outer or with other --outer- flags",
                    path, array.name);
      }
      auto* const to = array.pieces.at(0).values.as<std::uint8_t>();
      const auto element = static_cast<std::int64_t>(size_of(array.dtype));
      reader.read(array.name, 0, element_count(array.shape()), 0,
                  [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
                    std::memcpy(to + at * element, data, bytes);
                  });
    }
    const std::string_view text(static_cast<const char*>(state.record.data()), kRecordBytes);
    const nlohmann::json json = parse_json_object(text, path);
    try {
      state.fold->restore(json.at("fold").get<std::string>());
      json.at("position").get_to(state.position_taken);
      json.at("initial").get_to(state.initial);
      for (std::size_t i = 0; i < parts_.size(); ++i) {
        const nlohmann::json& part = json.at("parts").at(i);
        parts_[i] = {part.at(0).get<bool>(), part.at(1).get<std::int64_t>()};
        state.mine[i] = {part.at(2).get<std::uint64_t>(), part.at(3).get<std::uint64_t>(), 0};
      }
    } catch (const nlohmann::json::exception&) {
      usage_error("--resume {}: its record of the outer state is damaged", path);
    }
  });
  share_parts();
}

void OuterLoop::share_parts() {
  std::vector<std::int64_t> values;
  for (const Part& part : parts_) values.insert(values.end(), {part.in_flight ? 1 : 0, part.sent_at});
  if (world_.size() > 1) world_.broadcast(values.data(), values.size() * sizeof(std::int64_t), 0);
  for (std::size_t i = 0; i < parts_.size(); ++i) parts_[i] = {values[2 * i] != 0, values[2 * i + 1]};
}

/// Without rounds: reads the log up to its present end, and takes the outer weights of fragments that are not in
/// flight.
void OuterLoop::catch_up() {
  const auto is_free = [&](std::int64_t fragment) { return !parts_[static_cast<std::size_t>(fragment)].in_flight; };
  if (state_) {
    State& state = *state_;
    for (std::int64_t i = 0; i < layout_.fragments; ++i) {
      const OuterLayout::Range range = layout_.range(i);
      if (is_free(i)) std::ranges::copy(state.floats(state.weights, range), state.floats(state.sent, range).begin());
    }
    const std::string newest = state.log->newest();
    state.log->start(state.position_taken);
    while (!newest.empty() && state.position_taken != newest && state.log->fault().empty()) {
      state.log->wait(kWaitSlice);
      state.take_entries();
      for (std::int64_t i = 0; i < layout_.fragments; ++i) {
        if (is_free(i)) state.fold_all(i);
      }
    }
  }
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

std::optional<int> OuterLoop::exchange(std::int64_t step) {
  const Watch::Phase phase(device_.watch(), "exchange");
  if (state_) state_->take_entries();
  std::optional<int> signal;
  for (std::int64_t fragment = 0; fragment < options_.fragments && !signal; ++fragment) {
    signal = exchange(fragment, step);
  }
  if (state_) state_->write_record(parts_);
  const bool is_finished = !signal && step == steps_ && options_.rule.groups > 0;
  if (state_ && is_finished) state_->log->set_finished();
  return signal;
}

std::optional<int> OuterLoop::exchange(std::int64_t fragment, std::int64_t step) {
  const Clocked clocked(seconds_);
  const Part& part = parts_[static_cast<std::size_t>(fragment)];
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
    if (!state_) return;
    State& state = *state_;
    State::Sent& mine = state.mine[static_cast<std::size_t>(fragment)];
    const std::span<const float> outer = state.floats(state.weights, range);
    const std::span<const float> own = state.floats(state.sent, range);
    const std::span<float> difference = state.floats(state.residual, range);
    for (std::size_t i = 0; i < difference.size(); ++i) difference[i] += outer[i] - own[i];
    if (!encode(layout_.codec, difference, state.payload_of(fragment))) {
      throw Error(fmt::format("step {}: a weight is NaN or infinite, so the group sends nothing", step), true);
    }
    mine.base = state.fold->version(fragment);
    mine.round = options_.rule.groups > 0 ? mine.base : state.fold->next_round(fragment, options_.group);
    state.append(fragment);
  });
  parts_[static_cast<std::size_t>(fragment)] = {true, step};
}

/// Waits, as far as that is due, until the group's difference is a part of the outer weights, and takes them.
std::optional<int> OuterLoop::merge(std::int64_t fragment, std::int64_t step) {
  Part& part = parts_[static_cast<std::size_t>(fragment)];
  const bool rounds = options_.rule.groups > 0;
  const bool must_wait = rounds || step == steps_;
  const Clock::time_point start = Clock::now();
  Clock::time_point notice = start + kFirstNotice;
  while (true) {
    Wait wait = Wait::give_up;
    if (state_) {
      State& state = *state_;
      state.take_entries();
      const bool done = rounds ? state.fold_round(fragment) : state.fold_own(fragment);
      const bool keeps_waiting = must_wait || (options_.delay == 0 && state.log->fault().empty());
      wait = done ? Wait::done : keeps_waiting ? Wait::go_on : Wait::give_up;
    }
    wait = static_cast<Wait>(world_.max(static_cast<double>(wait)));
    if (wait == Wait::give_up) return std::nullopt;
    if (wait == Wait::done) break;
    if (const std::optional<int> signal = agreed_end_signal(world_)) return signal;
    if (state_) state_->log->wait(kWaitSlice);
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
  State& state = *state_;
  ++state.exchanges;
  exchanges_.push_back({step, fragment, state.fold->version(fragment),
                        state.mine[static_cast<std::size_t>(fragment)].age, step - part.sent_at,
                        std::chrono::duration<double>(Clock::now() - start).count(), state.log->bytes_sent(),
                        state.log->bytes_received(), state.skipped});
  return std::nullopt;
}

/// `keep_since_sent`: adds what the group has learned since its weights were State::sent.
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
  const State& state = *state_;
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
