#include "runtime/train/measure/core_share.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <limits>

#include "runtime/core/process/cores.h"

namespace ddptrain {
namespace {

constexpr double kLacking = 0.05;  // cores that are wanted beyond those that there are, relative to these
constexpr double kShortest = 0.5;  // seconds: the system counts what a core does in hundredths

struct RankCores {
  int node;
  std::set<int> cores;
  double limit;  ///< Of its cgroups, in cores.
};

std::vector<RankCores> cores_of_ranks(const World& world) {
  const std::set<int> own = allowed_cores();
  const double limit = core_limit().value_or(std::numeric_limits<double>::infinity());
  const std::vector<double> limits = world.all_gather(std::vector{limit});
  const std::vector<int> nodes = world.all_gather(std::vector{world.node()});
  const std::vector<int> counts = world.all_gather(std::vector{static_cast<int>(own.size())});
  const std::vector<int> cores = world.all_gather(std::vector<int>(own.begin(), own.end()));
  std::vector<RankCores> ranks;
  auto next = cores.begin();
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    ranks.push_back({nodes[rank], {next, next + counts[rank]}, limits[rank]});
    next += counts[rank];
  }
  return ranks;
}

/// Ranks of one host whose cores are among `cores` must have enough of them.
std::string crowd_among(const std::set<int>& cores, double limit, int node, const std::vector<RankCores>& ranks,
                        int threads) {
  if (cores.empty()) return "";  // unknown
  int wanted = 0;
  for (const RankCores& rank : ranks) {
    if (rank.node == node && std::ranges::includes(cores, rank.cores)) wanted += threads;
  }
  const double have = std::min(static_cast<double>(cores.size()), limit);
  return wanted > have ? fmt::format("{} threads share {:.3g} core{}", wanted, have, have == 1.0 ? "" : "s") : "";
}

double monotonic_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

CoreShare::CoreShare(const World& world, int threads) : world_(world) {
  const std::vector<RankCores> ranks = cores_of_ranks(world);
  hosts_.resize(static_cast<std::size_t>(world.nodes()));
  std::vector<double> limits(hosts_.size(), std::numeric_limits<double>::infinity());
  for (const RankCores& rank : ranks) {
    const auto node = static_cast<std::size_t>(rank.node);
    hosts_[node].cores.insert(rank.cores.begin(), rank.cores.end());
    hosts_[node].threads += threads;
    limits[node] = std::min(limits[node], rank.limit);
  }
  for (const RankCores& rank : ranks) {
    if (crowd_.empty()) crowd_ = crowd_among(rank.cores, rank.limit, rank.node, ranks, threads);
  }
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    if (crowd_.empty()) crowd_ = crowd_among(hosts_[node].cores, limits[node], static_cast<int>(node), ranks, threads);
  }
  begin_ = read();
}

std::vector<CoreShare::Reading> CoreShare::read() const {
  const std::set<int>& cores = hosts_[static_cast<std::size_t>(world_.node())].cores;
  const double busy = busy_seconds(cores).value_or(std::numeric_limits<double>::quiet_NaN());
  return world_.all_gather(std::vector{Reading{monotonic_seconds(), busy, process_cpu_seconds()}});
}

std::string CoreShare::Taken::text() const {
  return fmt::format("other programs took {:.0f}% of the cores", 100.0 * share);
}

std::string CoreShare::disturbance() const {
  const std::optional<Taken> others = taken();
  if (!crowd_.empty()) return crowd_;
  const bool is_known = others && others->seconds >= kShortest;
  return is_known && others->share >= kDisturbed && others->lacking ? others->text() : "";
}

std::optional<CoreShare::Taken> CoreShare::taken() const {
  const std::vector<Reading> now = read();
  const std::vector<int> nodes = world_.all_gather(std::vector{world_.node()});
  Taken most;
  for (std::size_t node = 0; node < hosts_.size(); ++node) {
    double seconds = 0.0;
    double busy = 0.0;
    double own = 0.0;
    for (std::size_t rank = 0; rank < now.size(); ++rank) {
      if (nodes[rank] != static_cast<int>(node)) continue;
      seconds = now[rank].seconds - begin_[rank].seconds;
      busy = now[rank].busy_seconds - begin_[rank].busy_seconds;
      own += now[rank].own_seconds - begin_[rank].own_seconds;
    }
    if (std::isnan(busy)) return std::nullopt;
    const auto cores = static_cast<double>(hosts_[node].cores.size());
    const double share = seconds > 0.0 ? std::clamp((busy - own) / (seconds * cores), 0.0, 1.0) : 0.0;
    most.share = std::max(most.share, share);
    most.seconds = std::max(most.seconds, seconds);
    most.lacking = most.lacking || hosts_[node].threads + share * cores > (1.0 + kLacking) * cores;
  }
  return most;
}

}  // namespace ddptrain
