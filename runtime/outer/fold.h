#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/outer/codec.h"

/// The mathematics of groups that train apart: outer weights as a fold over the log.

namespace ddptrain {

enum class OuterOptimizer : std::uint8_t {
  sgd,       ///< weights -= lr * difference
  nesterov,  ///< velocity = momentum * velocity + difference; weights -= lr * (difference + momentum * velocity)
};

struct OuterRule {
  std::int64_t groups = 0;  ///< Groups of each synchronous round; 0: differences are applied as they come.
  OuterOptimizer optimizer = OuterOptimizer::nesterov;
  float learning_rate = 0.7f;
  float momentum = 0.9f;
  std::int64_t most_age = 0;  ///< Without rounds: differences that are older are skipped.
};

/// Outer weights and velocity of one group's copy, and how far it has come. Whoever adds the same entries in the order
/// of the log gets the same bits. Fragments are independent of each other: only the order of the entries of one
/// fragment counts.
///
/// With rounds, a fragment's version advances when the differences of all groups of the round are there. They are added
/// in the order of the names of the groups and divided by the number of groups. The groups of a fragment are the first
/// `groups` names of its entries.
///
/// Without rounds, each entry advances the version of its fragment. Its age is the number of versions since the one
/// that it is based on, and it has the weight 1 / (1 + age).
class OuterFold {
 public:
  enum class Outcome : std::uint8_t {
    applied,   ///< The version has advanced.
    waits,     ///< Other groups of the round are missing.
    repeated,  ///< The group's difference of this round has been added before.
    too_old,   ///< See OuterRule::most_age; or the round is complete.
    ahead,     ///< It is based on a version that does not exist yet.
    foreign,   ///< The group is none of the groups of the rounds, or there are too many groups.
  };
  static constexpr std::size_t kMostGroups = 1024;
  /// Without rounds, entries of further groups are `foreign`.
  static constexpr std::size_t most_groups(std::int64_t fragments) {
    const std::size_t each = most_record_bytes(fragments) / static_cast<std::size_t>(fragments);
    return std::min(kMostGroups, (each - kPartBytes) / kGroupBytes);
  }
  /// Of record(), as text within JSON, and of a group's place in each fragment.
  static constexpr std::size_t most_record_bytes(std::int64_t fragments) {
    return std::max(std::size_t{1} << 20, static_cast<std::size_t>(fragments) * 4096);
  }

  /// `weights` has layout.size values, and `velocity` as many with OuterOptimizer::nesterov, else none. Both outlive
  /// the fold, which changes them in add() only.
  OuterFold(const OuterRule& rule, const OuterLayout& layout, std::span<float> weights, std::span<float> velocity);

  /// Adds an entry of parse_entry().
  Outcome add(const OuterEntry& entry);

  std::uint64_t version(std::int64_t fragment) const { return parts_.at(static_cast<std::size_t>(fragment)).version; }
  /// The number of the next difference of this group: see OuterEntry::round.
  std::uint64_t next_round(std::int64_t fragment, const std::string& group) const;
  /// The groups of the fragment whose difference the current round lacks. Empty without rounds. Groups that have not
  /// shown up yet have no names.
  std::vector<std::string> missing(std::int64_t fragment) const;
  /// The age of the last entry that was applied to the fragment.
  std::uint64_t last_age(std::int64_t fragment) const { return parts_.at(static_cast<std::size_t>(fragment)).last_age; }

  /// Versions and groups as JSON on one line, for a fold that goes on from the same weights and velocity. Differences
  /// that wait for others of their round are not in it: add their entries again.
  std::string record() const;
  /// UsageError if `record` is not of a fold with this rule and layout.
  void restore(std::string_view record);

 private:
  struct Part {
    std::uint64_t version = 0;
    std::uint64_t last_age = 0;
    std::map<std::string, std::uint64_t> next_round;  ///< Of each group that has been seen.
    std::map<std::string, std::string> waiting;       ///< The payloads of the current round, by group.
  };

  static constexpr std::size_t kPartBytes = 256;
  static constexpr std::size_t kGroupBytes = 96;  ///< The longest name and number.

  Outcome add_to_round(Part& part, const OuterEntry& entry);
  Outcome apply_at_once(Part& part, const OuterEntry& entry);
  void step(Part& part, OuterLayout::Range range, std::span<const float> difference, float scale);
  void decode_to(std::vector<float>& values, std::string_view payload, std::int64_t count) const;

  OuterRule rule_;
  OuterLayout layout_;
  std::span<float> weights_;
  std::span<float> velocity_;
  std::vector<Part> parts_;
  std::vector<float> sum_;
  std::vector<float> one_;
};

const char* text_of(OuterFold::Outcome outcome);

}  // namespace ddptrain
