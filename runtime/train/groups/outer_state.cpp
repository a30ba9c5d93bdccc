#include "runtime/train/groups/outer_state.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <utility>
#include <variant>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"
#include "runtime/outer/redis.h"

namespace ddptrain {
namespace {

constexpr std::chrono::milliseconds kFlushTime{2000};         // for the last entries of a run that ends early
constexpr std::size_t kEntryOverhead = 512;                   // bytes of an entry besides its payload, at most
constexpr std::size_t kMostPayload = std::size_t{256} << 20;  // Redis takes 512 MB, launch/outer-log sets 300
constexpr int kEntriesOnTheirWay = 8;                         // of groups that append at the same time
constexpr int kMostFaultLines = 5;                            // warnings about one group's entries

}  // namespace

OuterState::OuterState(const OuterOptions& options, OuterLayout& layout, Device& device)
    : options_(options), layout_(layout) {
  const std::size_t bytes = static_cast<std::size_t>(layout.size) * sizeof(float);
  weights = device.allocate_pinned(bytes);
  if (options.rule.optimizer == OuterOptimizer::nesterov) velocity = device.allocate_pinned(bytes);
  residual = device.allocate_pinned(bytes);
  sent = device.allocate_pinned(bytes);
  std::size_t payload_size = 0;
  for (std::int64_t i = 0; i < layout.fragments; ++i) payload_size += payload_bytes(i);
  payload = device.allocate_pinned(payload_size);
  record = device.allocate_pinned(OuterFold::most_record_bytes(layout.fragments));
  received_.resize(static_cast<std::size_t>(layout.fragments));
  added_.resize(received_.size());
  folded_.resize(received_.size());
  mine.resize(received_.size());
  fold.emplace(options.rule, layout, all(weights), all(velocity));
}

OuterState::~OuterState() {
  if (log) log->flush(kFlushTime);
}

std::uint8_t* OuterState::payload_of(std::int64_t fragment) const {
  std::size_t at = 0;
  for (std::int64_t i = 0; i < fragment; ++i) at += payload_bytes(i);
  return static_cast<std::uint8_t*>(payload.data()) + at;
}

std::size_t OuterState::largest_payload() const {
  std::size_t largest = 0;
  for (std::int64_t i = 0; i < layout_.fragments; ++i) largest = std::max(largest, payload_bytes(i));
  if (largest > kMostPayload) {
    usage_error("--outer-fragments {}: a difference has {}, and an entry of the log at most {}. Give at least {}.",
                layout_.fragments, size_text(largest), size_text(kMostPayload),
                static_cast<std::size_t>(layout_.fragments) * (largest / kMostPayload + 1));
  }
  return largest;
}

/// Refusals that no other group must notice.
void OuterState::require_limits() const {
  const std::size_t most = OuterFold::most_groups(layout_.fragments);
  if (options_.rule.groups > static_cast<std::int64_t>(most)) {
    usage_error("--outer-groups {}: with --outer-fragments {} there can be {}. Give fewer fragments.",
                options_.rule.groups, layout_.fragments, counted(static_cast<std::int64_t>(most), "group"));
  }
}

/// For a snapshot, and for entries of other groups that come before it. Nothing where the log keeps all entries.
std::uint64_t OuterState::bytes_kept_free(std::size_t entry) const {
  if (options_.snapshot_every == 0) return 0;
  const auto entries = static_cast<std::uint64_t>(std::max<std::int64_t>(options_.rule.groups, kEntriesOnTheirWay));
  return entries * entry + (rounds() ? 0 : weights.bytes() + velocity.bytes());
}

// --- entering the run -----------------------------------------------------------------------------------------------

bool OuterState::connect(GroupSettings settings, const std::vector<OuterParameter>& parameters,
                         std::vector<OuterPart>& parts, const std::string& resumed,
                         const std::function<bool()>& is_interrupted) {
  if (resumed.empty()) initial = hash_of(parameters, all(weights));
  settings.emplace_back("the hash of the initial weights", initial);
  const LogAddress address = parse_log_address(options_.address);
  run_name_ = address.name;
  require_limits();
  std::optional<Descriptor> record_file;
  if (!options_.record.empty()) record_file = require_writable("--outer-record", options_.record);
  const std::size_t entry = largest_payload() + kEntryOverhead;
  const std::uint64_t kept_free = bytes_kept_free(entry);
  const std::uint64_t scarce = kept_free + kEntriesOnTheirWay / 2 * entry;
  const std::size_t most_groups =
      rounds() ? static_cast<std::size_t>(options_.rule.groups) : OuterFold::most_groups(layout_.fragments);
  try {
    outage.emplace(address.text(), rounds());
    log.emplace(address, entry, kept_free, *outage, is_interrupted);
    registry.emplace(
        address,
        RunRegistry::Options{options_.group, options_.rule.groups, most_groups, options_.snapshot_every, scarce},
        *outage, is_interrupted);
    enter_run(settings, resumed);
    registry->join();
    registry->claim();
    if (!rounds()) {
      begin_with_snapshot(parts);
    } else if (is_later(registry->trimmed(), position_taken)) {
      usage_error(
          "the run {} in the log no longer has the rounds from which this group would go on{}. Continue from the "
          "newest checkpoint of this group with --resume, or begin a new run under another name in --outer.",
          run_name_, resumed.empty() ? "" : fmt::format(" (--resume {})", resumed));
    }
  } catch (const RedisInterrupted&) {
    return false;
  }
  if (!options_.record.empty()) {
    recorder_.emplace(options_.record, OuterRecordHead{options_.rule, layout_, parameters, fold->record()},
                      all(weights), all(velocity));
  }
  if (rounds() && resumed.empty()) registry->publish("", 0);
  return true;
}

/// Compares settings and the run's id, which is that of the checkpoint.
void OuterState::enter_run(const GroupSettings& settings, const std::string& resumed) {
  std::string of_run;
  if (resumed.empty()) {
    of_run = registry->settings(new_run_settings(settings));
  } else {
    of_run = registry->settings().value_or("");
    if (of_run.empty()) {
      usage_error(
          "--resume {}: the log {} has no run {}, in which that checkpoint was trained. Give the address of the log "
          "that has it, or begin a new run without --resume.",
          resumed, options_.address, run_name_);
    }
  }
  require_same_settings(settings, of_run, run_name_);
  const std::string id = run_id_of(of_run);
  if (!resumed.empty() && id != run_id_) {
    usage_error(
        "--resume {}: that checkpoint is of another run than {} in the log (run id {}, in the log {}). Give "
        "the address and name of its run in --outer, or begin without --resume.",
        resumed, run_name_, run_id_, id);
  }
  run_id_ = id;
  layout_.run = xxh3_128_value(of_run.data(), of_run.size())[0];
  if (rounds() && resumed.empty() && registry->is_finished()) {
    usage_error(
        "the run {} in the log is finished, so nothing that this group trains would count. Give a new run another "
        "name in --outer, or continue from a checkpoint with --resume.",
        run_name_);
  }
}

bool OuterState::is_fit(const SnapshotHead& head) const {
  return head.run == layout_.run && head.bytes == weights.bytes() + velocity.bytes();
}

/// Replaces the outer state by a snapshot. False, changing nothing, if the snapshot cannot be used.
bool OuterState::use_snapshot(const SnapshotHead& head) {
  if (!is_fit(head)) return false;
  const std::optional<std::string> values = registry->values_of(head);
  if (!values) return false;
  std::vector<float> numbers(values->size() / sizeof(float));
  std::memcpy(numbers.data(), values->data(), values->size());
  if (!std::ranges::all_of(numbers, [](float value) { return std::isfinite(value); })) return false;
  try {
    const nlohmann::json json = parse_json_object(head.record, "the record of a snapshot");
    const auto folded = json.at("folded").get<std::vector<std::string>>();
    if (folded.size() != folded_.size()) return false;
    fold->restore(json.at("fold").get<std::string>());
    folded_ = folded;
  } catch (const nlohmann::json::exception&) {
    return false;
  } catch (const UsageError&) {
    return false;
  }
  std::memcpy(weights.data(), values->data(), weights.bytes());
  if (velocity.bytes() > 0) std::memcpy(velocity.data(), values->data() + weights.bytes(), velocity.bytes());
  position_taken = head.position;
  return true;
}

/// Takes the newest snapshot that is after the group's position. Fragments whose difference it has are no longer in
/// flight. What the group has learned besides stays: see OuterLoop::take_outer_weights().
void OuterState::begin_with_snapshot(std::vector<OuterPart>& parts) {
  for (std::int64_t i = 0; i < layout_.fragments; ++i) {
    const OuterLayout::Range range = layout_.range(i);
    const bool is_free = !parts[static_cast<std::size_t>(i)].in_flight;
    if (is_free) std::ranges::copy(floats(weights, range), floats(sent, range).begin());
  }
  const std::optional<std::vector<SnapshotHead>> heads = registry->snapshots();
  bool is_used = false;
  for (const SnapshotHead& head : heads.value_or(std::vector<SnapshotHead>{})) {
    if (!is_later(head.position, position_taken)) break;
    is_used = use_snapshot(head);
    if (is_used) {
      spdlog::info("Group {} begins with the snapshot of version {} in the log", options_.group, head.version);
      break;
    }
    spdlog::warn("The snapshot of version {} in the log {} is damaged: it is not used", head.version, run_name_);
  }
  if (!heads) spdlog::warn("The list of snapshots in the log {} is damaged: it is not used", run_name_);
  if (is_used) free_folded_parts(parts);
  if (!is_later(registry->trimmed(), position_taken)) return;
  usage_error(
      "the run {} in the log has no snapshot that can be used, and its first entries have been removed. Begin a "
      "new run under another name in --outer, with --init and the weights of a checkpoint (--export) if they are to be "
      "kept.",
      run_name_);
}

void OuterState::free_folded_parts(std::vector<OuterPart>& parts) const {
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (fold->next_round(static_cast<std::int64_t>(i), options_.group) > mine[i].round) parts[i].in_flight = false;
  }
}

bool OuterState::has_place() const {
  return !log->has_gap() && !registry->has_lost_run() && registry->other_holder().empty();
}

void OuterState::require_place() const {
  if (const std::string holder = registry->other_holder(); !holder.empty()) {
    usage_error(
        "--group {}: {} has taken this name in the run {}, because this job gave no sign of life for seconds. Let one "
        "of them train.",
        options_.group, holder, run_name_);
  }
  if (registry->has_lost_run()) {
    usage_error(
        "the log has lost the run {} of this group: its server was started without its data, or begun anew. Start it "
        "with the folder that has the run and continue with --resume, or begin a new run under another name in "
        "--outer.",
        run_name_);
  }
  if (!log->has_gap()) return;
  usage_error(
      "group {} is behind the log {}: entries that it lacks have been removed. Start it again: it begins with the "
      "newest snapshot, and --resume auto keeps what it has trained up to its checkpoint.",
      options_.group, run_name_);
}

// --- sending and folding --------------------------------------------------------------------------------------------

void OuterState::send(std::int64_t fragment, std::int64_t step) {
  const OuterLayout::Range range = layout_.range(fragment);
  const std::span<const float> outer = floats(weights, range);
  const std::span<const float> own = floats(sent, range);
  const std::span<float> difference = floats(residual, range);
  for (std::size_t i = 0; i < difference.size(); ++i) difference[i] += outer[i] - own[i];
  if (!encode(layout_.codec, difference, payload_of(fragment))) {
    throw Error(fmt::format("step {}: a weight is NaN or infinite, so the group sends nothing", step), true);
  }
  Sent& of = mine[static_cast<std::size_t>(fragment)];
  of.base = fold->version(fragment);
  of.round = rounds() ? of.base : fold->next_round(fragment, options_.group);
  append(fragment);
}

void OuterState::append(std::int64_t fragment) {
  const Sent& of = mine[static_cast<std::size_t>(fragment)];
  const OuterEntry entry{
      layout_.run,
      options_.group,
      of.round,
      of.base,
      static_cast<std::uint32_t>(fragment),
      std::string_view(reinterpret_cast<const char*>(payload_of(fragment)), payload_bytes(fragment))};
  log->append(write_entry(entry, layout_));
}

void OuterState::note_fault(const std::string& group, const std::string& what) {
  ++skipped;
  int& lines = fault_lines_[fault_lines_.size() < OuterFold::kMostGroups ? group : ""];
  if (++lines > kMostFaultLines) return;
  spdlog::warn("An entry of the log{} is skipped: {}{}", group.empty() ? "" : " of group " + group, what,
               lines == kMostFaultLines ? ". More of this group are skipped without a line" : "");
}

/// Checks what has come from the log, and puts it in the queue of its fragment.
void OuterState::take_entries() {
  for (LogClient::Entry& from_log : log->take()) {
    const std::string before = std::exchange(position_taken, from_log.id);
    auto parsed = parse_entry(from_log.bytes, layout_);
    if (const auto* fault = std::get_if<EntryFault>(&parsed)) {
      note_fault(fault->group, fmt::format("{} ({})", fault->what, printable(from_log.id)));
      continue;
    }
    OuterEntry& entry = std::get<OuterEntry>(parsed);
    if (!is_later(from_log.id, folded_[entry.fragment])) continue;  // in the snapshot or checkpoint
    const auto at = static_cast<std::size_t>(entry.payload.data() - from_log.bytes.data());
    Received& queued = received_[entry.fragment].emplace_back(
        Received{taken_++, before, from_log.id, std::move(from_log.bytes), std::move(entry)});
    queued.entry.payload = std::string_view(queued.bytes).substr(at, queued.entry.payload.size());
  }
}

/// Adds the first entry in the queue of a fragment that has not been added yet.
OuterFold::Outcome OuterState::add(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  const Received& next = received_[part][added_[part]++];
  const OuterEntry& entry = next.entry;
  const OuterFold::Outcome outcome = fold->add(entry);
  if (recorder_) recorder_->add(next.bytes);
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

/// Removes entries from the queue that the fold has got.
void OuterState::drop_added(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  for (; added_[part] > 0; --added_[part]) {
    folded_[part] = received_[part].front().id;
    received_[part].pop_front();
  }
}

bool OuterState::fold_round(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  while (fold->version(fragment) == mine[part].base && added_[part] < received_[part].size()) add(fragment);
  if (fold->version(fragment) == mine[part].base) return false;
  drop_added(fragment);
  return true;
}

bool OuterState::fold_own(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  const bool has_come = std::ranges::any_of(received_[part], [&](const Received& each) {
    return each.entry.group == options_.group && each.entry.round >= mine[part].round;
  });
  if (has_come) fold_all(fragment);
  return has_come;
}

void OuterState::fold_all(std::int64_t fragment) {
  const auto part = static_cast<std::size_t>(fragment);
  while (!received_[part].empty()) {
    const bool is_mine = received_[part].front().entry.group == options_.group;
    if (add(fragment) == OuterFold::Outcome::applied && is_mine) mine[part].age = fold->last_age(fragment);
    drop_added(fragment);
  }
}

std::uint64_t OuterState::version() const {
  std::uint64_t lowest = fold->version(0);
  for (std::int64_t i = 1; i < layout_.fragments; ++i) lowest = std::min(lowest, fold->version(i));
  return lowest;
}

std::string OuterState::waiting_for(std::int64_t fragment) const {
  if (const std::string fault = log->fault(); !fault.empty()) return fmt::format("the log ({})", fault);
  if (!rounds()) return "the log";
  const std::vector<std::string> missing = fold->missing(fragment);
  if (!missing.empty()) return fmt::format("{} {}", missing.size() == 1 ? "group" : "groups", fmt::join(missing, ", "));
  return fmt::format("groups that have not started yet (--outer-groups {})", options_.rule.groups);
}

// --- what outlives the job ------------------------------------------------------------------------------------------

/// From which a later run must read on.
std::string OuterState::position() const {
  const Received* first = nullptr;
  for (const auto& queue : received_) {
    if (!queue.empty() && (first == nullptr || queue.front().number < first->number)) first = &queue.front();
  }
  return first == nullptr ? position_taken : first->before;
}

void OuterState::tell(std::int64_t step, std::optional<std::int64_t> kept) {
  if (rounds()) {
    std::optional<std::string> needed;
    while (kept && !positions_.empty() && positions_.begin()->first < *kept) {
      needed = positions_.begin()->second;
      positions_.erase(positions_.begin());
    }
    positions_[step] = position();
    registry->publish(needed, version());
    return;
  }
  registry->publish(position(), version());
  if (registry->wants_snapshot()) write_snapshot();
}

void OuterState::write_snapshot() {
  SnapshotHead head;
  head.run = layout_.run;
  head.position = position();
  head.version = version();
  head.record = nlohmann::json{{"fold", fold->record()}, {"folded", folded_}}.dump();
  std::string values(static_cast<const char*>(weights.data()), weights.bytes());
  values.append(static_cast<const char*>(velocity.data()), velocity.bytes());
  registry->write_snapshot(std::move(head), std::move(values));
}

void OuterState::write_record(const std::vector<OuterPart>& parts) {
  nlohmann::json json = {
      {"fold", fold->record()}, {"position", position()}, {"initial", initial}, {"run", run_id_}, {"folded", folded_}};
  for (std::size_t i = 0; i < parts.size(); ++i) {
    json["parts"].push_back({parts[i].in_flight, parts[i].sent_at, mine[i].round, mine[i].base});
  }
  const std::string text = json.dump();
  DDP_CHECK(text.size() <= record.bytes(), "the record of the outer state takes {} bytes", text.size());
  std::memset(record.data(), ' ', record.bytes());
  std::memcpy(record.data(), text.data(), text.size());
}

void OuterState::read_record(const std::string& path, std::vector<OuterPart>& parts) {
  const std::string_view text(static_cast<const char*>(record.data()), record.bytes());
  const nlohmann::json json = parse_json_object(text, path);
  try {
    fold->restore(json.at("fold").get<std::string>());
    json.at("position").get_to(position_taken);
    json.at("initial").get_to(initial);
    json.at("run").get_to(run_id_);
    json.at("folded").get_to(folded_);
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const nlohmann::json& part = json.at("parts").at(i);
      parts[i] = {part.at(0).get<bool>(), part.at(1).get<std::int64_t>()};
      mine[i] = {part.at(2).get<std::uint64_t>(), part.at(3).get<std::uint64_t>(), 0};
    }
  } catch (const nlohmann::json::exception&) {
    usage_error("--resume {}: its record of the outer state is damaged", path);
  } catch (const UsageError& fault) {
    usage_error("--resume {}: {}. Continue with the --outer- flags with which it was written.", path, fault.what());
  }
  if (folded_.size() != parts.size()) usage_error("--resume {}: its record of the outer state is damaged", path);
}

}  // namespace ddptrain
