#include "runtime/outer/fold.h"

#include <algorithm>
#include <array>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"

namespace ddptrain {
namespace {

constexpr std::uint64_t kMostVersion = std::uint64_t{1} << 53;  // JSON numbers are exact up to here

std::span<const std::uint8_t> bytes_of(std::string_view payload) {
  return {reinterpret_cast<const std::uint8_t*>(payload.data()), payload.size()};
}

std::uint64_t number_in(const nlohmann::json& json) {
  if (!json.is_number_unsigned() || json.get<std::uint64_t>() > kMostVersion)
    usage_error("damaged: a version is no number");
  return json.get<std::uint64_t>();
}

}  // namespace

const char* text_of(OuterFold::Outcome outcome) {
  constexpr std::array kTexts = {"applied",
                                 "waits for other groups",
                                 "was there before",
                                 "is too old",
                                 "is based on a version that does not exist",
                                 "is of a group that does not belong to the rounds"};
  return kTexts.at(static_cast<std::size_t>(outcome));
}

OuterFold::OuterFold(const OuterRule& rule, const OuterLayout& layout, std::span<float> weights,
                     std::span<float> velocity)
    : rule_(rule),
      layout_(layout),
      weights_(weights),
      velocity_(velocity),
      parts_(static_cast<std::size_t>(layout.fragments)) {
  DDP_CHECK(static_cast<std::int64_t>(weights.size()) == layout.size, "{} outer weights of {}", weights.size(),
            layout.size);
  DDP_CHECK(velocity.size() == (rule.optimizer == OuterOptimizer::sgd ? 0 : weights.size()), "{} velocities",
            velocity.size());
}

OuterFold::Outcome OuterFold::add(const OuterEntry& entry) {
  Part& part = parts_.at(entry.fragment);
  if (entry.base > part.version || entry.round > kMostVersion) return Outcome::ahead;
  if (rule_.groups > 0 && entry.round != entry.base) return Outcome::ahead;
  const bool known = part.next_round.contains(entry.group);
  const std::size_t most = rule_.groups > 0 ? static_cast<std::size_t>(rule_.groups) : most_groups(layout_.fragments);
  if (!known && part.next_round.size() == most) return Outcome::foreign;
  std::uint64_t& next_round = part.next_round[entry.group];
  if (entry.round < next_round) return Outcome::repeated;
  if (rule_.groups > 0 && entry.base < part.version) return Outcome::too_old;
  next_round = entry.round + 1;
  return rule_.groups > 0 ? add_to_round(part, entry) : apply_at_once(part, entry);
}

OuterFold::Outcome OuterFold::add_to_round(Part& part, const OuterEntry& entry) {
  part.waiting.emplace(entry.group, entry.payload);
  if (static_cast<std::int64_t>(part.waiting.size()) < rule_.groups) return Outcome::waits;
  const OuterLayout::Range range = layout_.range(entry.fragment);
  sum_.assign(static_cast<std::size_t>(range.count()), 0.0f);
  for (const auto& [group, payload] : part.waiting) {
    decode_to(one_, payload, range.count());
    for (std::size_t i = 0; i < sum_.size(); ++i) sum_[i] += one_[i];
  }
  part.waiting.clear();
  part.last_age = 0;
  step(part, range, sum_, 1.0f / static_cast<float>(rule_.groups));
  return Outcome::applied;
}

OuterFold::Outcome OuterFold::apply_at_once(Part& part, const OuterEntry& entry) {
  const std::uint64_t age = part.version - entry.base;
  if (age > static_cast<std::uint64_t>(rule_.most_age)) return Outcome::too_old;
  const OuterLayout::Range range = layout_.range(entry.fragment);
  decode_to(one_, entry.payload, range.count());
  part.last_age = age;
  step(part, range, one_, 1.0f / static_cast<float>(1 + age));
  return Outcome::applied;
}

void OuterFold::decode_to(std::vector<float>& values, std::string_view payload, std::int64_t count) const {
  values.resize(static_cast<std::size_t>(count));
  decode(layout_.codec, bytes_of(payload), values);
}

/// Compiled without contraction to fused multiply-adds, so that every processor rounds alike.
void OuterFold::step(Part& part, OuterLayout::Range range, std::span<const float> difference, float scale) {
  const float lr = rule_.learning_rate;
  const float momentum = rule_.momentum;
  float* const weights = weights_.data() + range.begin;
  const std::size_t count = difference.size();
  if (rule_.optimizer == OuterOptimizer::sgd) {
    for (std::size_t i = 0; i < count; ++i) weights[i] -= lr * (difference[i] * scale);
  } else {
    float* const velocity = velocity_.data() + range.begin;
    for (std::size_t i = 0; i < count; ++i) {
      const float mean = difference[i] * scale;
      velocity[i] = momentum * velocity[i] + mean;
      weights[i] -= lr * (mean + momentum * velocity[i]);
    }
  }
  ++part.version;
}

std::uint64_t OuterFold::next_round(std::int64_t fragment, const std::string& group) const {
  const Part& part = parts_.at(static_cast<std::size_t>(fragment));
  const auto found = part.next_round.find(group);
  return found == part.next_round.end() ? 0 : found->second;
}

std::vector<std::string> OuterFold::missing(std::int64_t fragment) const {
  std::vector<std::string> names;
  if (rule_.groups == 0) return names;
  const Part& part = parts_.at(static_cast<std::size_t>(fragment));
  for (const auto& [group, round] : part.next_round) {
    if (!part.waiting.contains(group)) names.push_back(group);
  }
  return names;
}

std::string OuterFold::record() const {
  nlohmann::json parts = nlohmann::json::array();
  for (const Part& part : parts_) {
    nlohmann::json rounds = nlohmann::json::object();
    for (const auto& [group, next] : part.next_round) rounds[group] = next - (part.waiting.contains(group) ? 1 : 0);
    parts.push_back({{"version", part.version}, {"next_round", rounds}});
  }
  return nlohmann::json{{"fragments", parts}}.dump();
}

void OuterFold::restore(std::string_view record) {
  const nlohmann::json json = parse_json_object(record, "the record of the outer state");
  const auto parts = json.find("fragments");
  if (parts == json.end() || !parts->is_array() || parts->size() != parts_.size()) {
    usage_error("the record of the outer state has not {} fragments", parts_.size());
  }
  std::vector<Part> restored(parts_.size());
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const nlohmann::json& from = (*parts)[i];
    if (!from.is_object() || !from.contains("version") || !from.contains("next_round") ||
        !from["next_round"].is_object() || from["next_round"].size() > kMostGroups) {
      usage_error("the record of the outer state is damaged");
    }
    restored[i].version = number_in(from["version"]);
    for (const auto& [group, next] : from["next_round"].items()) {
      if (!is_group_name(group)) usage_error("the record of the outer state is damaged: a group's name");
      restored[i].next_round[group] = number_in(next);
    }
  }
  parts_ = std::move(restored);
}

}  // namespace ddptrain
