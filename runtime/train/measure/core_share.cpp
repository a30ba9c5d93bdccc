#include "runtime/train/measure/core_share.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <utility>

#include "runtime/core/process/cores.h"
#include "runtime/core/process/host.h"

namespace ddptrain {
namespace {

constexpr double kLacking = 0.05;       // cores that are wanted beyond those that there are, relative to these
constexpr double kShortest = 0.5;       // seconds: the system counts what a core does in hundredths
constexpr double kShortestWait = 1e-3;  // seconds: what wakes up on an idle machine takes less

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

struct RankCores {
  int node;
  int machine;
  std::set<int> cores;
  double limit;  ///< Of its cgroups, in cores.
};

/// The number of each rank's machine. Without a name, a host counts as one.
std::vector<int> machines_of(const World& world) {
  const std::string boot = boot_id();
  const std::size_t identity = boot.empty() ? static_cast<std::size_t>(world.node()) : std::hash<std::string>()(boot);
  return number_hosts(world.all_gather(std::vector{static_cast<std::uint64_t>(identity)}));
}

std::vector<RankCores> cores_of_ranks(const World& world, const std::vector<int>& machine_of) {
  const std::set<int> own = allowed_cores();
  const std::vector<double> limits = world.all_gather(std::vector{core_limit().value_or(kNoLimit)});
  const std::vector<int> nodes = world.all_gather(std::vector{world.node()});
  const std::vector<int> counts = world.all_gather(std::vector{static_cast<int>(own.size())});
  const std::vector<int> cores = world.all_gather(std::vector<int>(own.begin(), own.end()));
  std::vector<RankCores> ranks;
  auto next = cores.begin();
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    ranks.push_back({nodes[rank], machine_of[rank], {next, next + counts[rank]}, limits[rank]});
    next += counts[rank];
  }
  return ranks;
}

/// The ranks whose cores are among `cores` must have enough of them.
std::string crowd_among(const std::set<int>& cores, double limit, const std::vector<RankCores>& ranks, int threads) {
  if (cores.empty()) return "";  // unknown
  int wanted = 0;
  for (const RankCores& rank : ranks) {
    if (std::ranges::includes(cores, rank.cores)) wanted += threads;
  }
  const double have = std::min(static_cast<double>(cores.size()), limit);
  return wanted > have ? fmt::format("{} threads share {:.3g} core{}", wanted, have, have == 1.0 ? "" : "s") : "";
}

/// Among `ranks`, of one host or machine: on the cores of one of them, or on all cores.
std::string crowd_of(const std::vector<RankCores>& ranks, bool are_limited, int threads) {
  std::string crowd;
  std::set<int> all;
  double least = kNoLimit;
  for (const RankCores& rank : ranks) {
    const double limit = are_limited ? rank.limit : kNoLimit;
    if (crowd.empty()) crowd = crowd_among(rank.cores, limit, ranks, threads);
    all.insert(rank.cores.begin(), rank.cores.end());
    least = std::min(least, limit);
  }
  return crowd.empty() ? crowd_among(all, least, ranks, threads) : crowd;
}

/// The ranks with the same `group`, group by group.
std::vector<std::vector<RankCores>> grouped(const std::vector<RankCores>& ranks, int RankCores::*group) {
  std::map<int, std::vector<RankCores>> groups;
  for (const RankCores& rank : ranks) groups[rank.*group].push_back(rank);
  std::vector<std::vector<RankCores>> all;
  for (auto& [number, members] : groups) all.push_back(std::move(members));
  return all;
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

CoreShare::CoreShare(const World& world, int threads) : world_(world), machine_of_(machines_of(world)) {
  const std::vector<RankCores> ranks = cores_of_ranks(world, machine_of_);
  for (const std::vector<RankCores>& host : grouped(ranks, &RankCores::node)) {
    if (crowd_.empty()) crowd_ = crowd_of(host, true, threads);
  }
  for (const std::vector<RankCores>& on_machine : grouped(ranks, &RankCores::machine)) {
    if (crowd_.empty()) crowd_ = crowd_of(on_machine, false, threads);  // limits are of the hosts in it
    Machine& machine = machines_.emplace_back();
    for (const RankCores& rank : on_machine) machine.cores.insert(rank.cores.begin(), rank.cores.end());
    machine.threads = static_cast<double>(on_machine.size()) * threads;
  }
  begin_ = read();
}

std::vector<CoreShare::Reading> CoreShare::read() {
  const int mine = machine_of_[static_cast<std::size_t>(world_.rank())];
  const std::set<int>& cores = machines_[static_cast<std::size_t>(mine)].cores;
  const double busy = busy_seconds(cores).value_or(std::numeric_limits<double>::quiet_NaN());
  return world_.all_gather(std::vector{Reading{monotonic_seconds(), busy, process_cpu_seconds(), wait_.seconds()}});
}

std::string CoreShare::Taken::text() const {
  return fmt::format("other programs took {:.0f}% of the cores", 100.0 * share);
}

Disturbance CoreShare::disturbance() {
  const std::vector<Reading> now = read();
  double longest = 0.0;
  std::size_t longest_rank = 0;
  for (std::size_t rank = 0; rank < now.size(); ++rank) {
    const double waited = now[rank].waited - begin_[rank].waited;
    const double share = waited / (now[rank].seconds - begin_[rank].seconds);
    if (waited < kShortestWait || share <= longest) continue;
    longest = share;
    longest_rank = rank;
  }
  return why_disturbed(crowd_, taken_until(now), longest, longest_rank);
}

std::optional<CoreShare::Taken> CoreShare::taken_until(const std::vector<Reading>& now) const {
  Taken most;
  for (std::size_t machine = 0; machine < machines_.size(); ++machine) {
    double seconds = 0.0;
    double busy = 0.0;
    double own = 0.0;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      if (machine_of_[rank] != static_cast<int>(machine)) continue;
      seconds = now[rank].seconds - begin_[rank].seconds;
      busy = now[rank].busy_seconds - begin_[rank].busy_seconds;
      own += now[rank].own_seconds - begin_[rank].own_seconds;
    }
    if (std::isnan(busy)) return std::nullopt;
    const auto cores = static_cast<double>(machines_[machine].cores.size());
    const double share = seconds > 0.0 ? std::clamp((busy - own) / (seconds * cores), 0.0, 1.0) : 0.0;
    most.share = std::max(most.share, share);
    most.seconds = std::max(most.seconds, seconds);
    most.lacking = most.lacking || machines_[machine].threads + share * cores > (1.0 + kLacking) * cores;
  }
  return most;
}

Disturbance why_disturbed(const std::string& crowd, const std::optional<CoreShare::Taken>& taken, double wait,
                          std::size_t rank) {
  if (!crowd.empty()) return {crowd, false};
  const bool waits = wait >= CoreShare::kDisturbed;
  const bool is_known = taken && taken->seconds >= kShortest;
  if (is_known && taken->share >= CoreShare::kDisturbed && (waits || taken->lacking)) return {taken->text(), true};
  if (!waits) return {};
  return {fmt::format("rank {} waited {:.0f}% of its time for a core", rank, 100.0 * wait), true};
}

}  // namespace ddptrain
