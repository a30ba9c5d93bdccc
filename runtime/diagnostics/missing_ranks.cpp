#include "runtime/diagnostics/missing_ranks.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <utility>

namespace ddptrain {
namespace {

constexpr double kHangShare = 0.5;  // of this rank's wait: a rank that computes for longer hangs
constexpr std::size_t kMost = 4;    // ranks of a group that are named

/// Why this rank may wait for another, the surest reason first.
enum Reason : std::uint8_t { hangs, ended, silent, behind, late, computes, kReasons };

struct Suspect {
  bool is_short;   ///< It has called fewer collectives than this rank waits for, as far as it was heard.
  double seconds;  ///< Since it was last seen to make progress.
  std::string text;
};
using Groups = std::array<std::vector<Suspect>, kReasons>;

std::string in_collective(const Beat& beat) {
  if (beat.sequence == 0) return {};
  const std::string bucket = beat.bucket < 0 ? "" : fmt::format(" of bucket {}", beat.bucket);
  return fmt::format("{}{} (collective {})", beat.collective, bucket, beat.sequence);
}

bool is_computing(const Beat& beat) { return beat.waiting_for[0] == '\0'; }

/// Whether `own` waits in a collective that the peer has not called.
bool is_short(const Beat& own, const PeerState& peer) {
  return peer.calls_the_same && peer.last.collectives < own.sequence;
}

/// Adds a rank that was heard to its group, unless it answers and waits as this rank does.
void add(Groups& groups, const Beat& own, const PeerState& peer) {
  const Beat& last = peer.last;
  const double seconds = last.seconds + (peer.answers ? 0.0 : peer.seconds_ago);
  const std::string silence = fmt::format("does not answer, last heard of {:.1f} s ago", peer.seconds_ago);
  const auto found = [&](Reason reason, const std::string& text) {
    groups[reason].push_back({is_short(own, peer), seconds, fmt::format("{} {}", peer.name, text)});
  };
  if (peer.ended) {
    found(ended, "has ended");
    return;
  }
  if (is_computing(last) && last.seconds >= kHangShare * own.seconds) {
    found(hangs, fmt::format("has not entered a collective for {:.1f} s{} ({})", seconds,
                             peer.answers ? "" : " and " + silence, where(last)));
    return;
  }
  if (!peer.answers) {
    found(peer.heard_lately ? late : silent, fmt::format("{} {} ({})", silence, doing(last), where(last)));
    return;
  }
  if (is_computing(last)) {
    found(is_short(own, peer) ? behind : computes,
          fmt::format("has not entered a collective for {:.1f} s ({})", seconds, where(last)));
    return;
  }
  if (peer.calls_the_same && last.sequence != 0 && own.sequence != 0 && last.sequence < own.sequence) {
    found(behind, fmt::format("is behind, {} ({})", doing(last), where(last)));
  }
}

std::string listed(const std::vector<std::string>& items) {
  const std::size_t shown = std::min(items.size(), kMost);
  const std::string text =
      fmt::format("{}", fmt::join(items.begin(), items.begin() + static_cast<std::ptrdiff_t>(shown), "; "));
  return items.size() > kMost ? fmt::format("{}; and {} more", text, items.size() - kMost) : text;
}

/// The ranks that have called too few collectives first, and of these the longest first.
std::string listed(std::vector<Suspect> group) {
  std::ranges::stable_sort(group, std::ranges::greater{},
                           [](const Suspect& each) { return std::pair(each.is_short, each.seconds); });
  std::vector<std::string> texts;
  for (const Suspect& each : group) texts.push_back(each.text);
  return listed(texts);
}

}  // namespace

std::string doing(const Beat& beat) {
  if (is_computing(beat)) return "busy with its own work";
  const std::string collective = in_collective(beat);
  if (collective.empty()) return fmt::format("waiting for {}", beat.waiting_for);
  if (std::strcmp(beat.waiting_for, beat.collective) == 0) return "waiting in " + collective;
  return fmt::format("waiting for {} in {}", beat.waiting_for, collective);
}

std::string where(const Beat& beat) {
  return beat.steps == beat.device_steps
             ? fmt::format("{}, step {}", beat.phase, beat.steps)
             : fmt::format("{}, step {} of {} queued", beat.phase, beat.device_steps, beat.steps);
}

std::string missing_ranks(const Beat& own, const std::vector<PeerState>& others) {
  Groups groups;
  std::vector<std::string> unknown;
  for (const PeerState& peer : others) {
    if (peer.heard) {
      add(groups, own, peer);
    } else {
      unknown.push_back(peer.name);
    }
  }
  std::vector<std::string> texts;
  for (int reason = 0; reason < kReasons; ++reason) {
    const std::vector<Suspect>& group = groups[static_cast<std::size_t>(reason)];
    if (group.empty() || (reason == computes && !(texts.empty() && unknown.empty()))) continue;
    texts.push_back(listed(group));
  }
  std::vector<std::string> sentences;
  if (!texts.empty()) sentences.push_back(fmt::format("Missing: {}.", fmt::join(texts, "; ")));
  if (!unknown.empty()) sentences.push_back(fmt::format("No answer has ever come from {}.", listed(unknown)));
  if (sentences.empty()) return "All other ranks answer, and none is known to be behind.";
  return fmt::format("{}", fmt::join(sentences, " "));
}

}  // namespace ddptrain
