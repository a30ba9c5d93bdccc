#include "benchmarks/ddpbench/doctor/halving.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <set>
#include <utility>

namespace ddptrain::bench {
namespace {

using Units = std::vector<int>;

constexpr int kMoreTurns = 2;

std::pair<Units, Units> halves_of(const Units& units) {
  const auto middle = units.begin() + static_cast<std::ptrdiff_t>(units.size() / 2);
  return {Units(units.begin(), middle), Units(middle, units.end())};
}

Units joined(const Units& a, const Units& b) {
  Units all = a;
  all.insert(all.end(), b.begin(), b.end());
  return all;
}

class Halver {
 public:
  Halver(const std::vector<Units>& groups, double tolerance, const MeasureSets& measure)
      : groups_(groups), tolerance_(tolerance), measure_(measure) {}

  Halving run() {
    measure_halves();
    while (examine()) {
    }
    name_units();
    for (const Units& group : groups_) name_ways(group);
    return {std::move(sets_), std::move(slow_)};
  }

 private:
  void run_sets(const std::vector<Units>& sets) {
    std::vector<double> rates = measure_(sets);
    for (int turn = 0; turn < kMoreTurns; ++turn) repeat_slow(sets, rates);
    for (std::size_t i = 0; i < sets.size(); ++i) {
      sets_.push_back({sets[i], rates[i]});
      rates_[sets[i]] = rates[i];
      if (sets[i].size() == 2) {
        partners_[sets[i][0]][sets[i][1]] = rates[i];
        partners_[sets[i][1]][sets[i][0]] = rates[i];
      }
    }
  }

  /// A unit that is slow for a moment is not slow: the best of several measurements counts.
  void repeat_slow(const std::vector<Units>& sets, std::vector<double>& rates) {
    const double best = std::max(usual(), *std::max_element(rates.begin(), rates.end()));
    std::vector<std::size_t> places;
    std::vector<Units> slow;
    for (std::size_t i = 0; i < sets.size(); ++i) {
      if (rates[i] >= tolerance_ * best) continue;
      places.push_back(i);
      slow.push_back(sets[i]);
    }
    if (slow.empty()) return;
    const std::vector<double> again = measure_(slow);
    for (std::size_t i = 0; i < slow.size(); ++i) rates[places[i]] = std::max(rates[places[i]], again[i]);
  }

  void measure_halves() {
    std::vector<Units> sets = groups_;
    const auto too_small = [](const Units& units) { return units.size() < 2; };
    for (std::erase_if(sets, too_small); !sets.empty(); std::erase_if(sets, too_small)) {
      run_sets(sets);
      std::vector<Units> smaller;
      for (const Units& set : sets) {
        if (set.size() == 2) continue;
        auto [low, high] = halves_of(set);
        smaller.push_back(std::move(low));
        smaller.push_back(std::move(high));
      }
      sets = std::move(smaller);
    }
  }

  double usual() const {
    std::vector<double> rates;
    for (const auto& [units, rate] : rates_) {
      if (units.size() == 2) rates.push_back(rate);
    }
    if (rates.empty()) return 0.0;
    std::sort(rates.begin(), rates.end());
    return rates[rates.size() - 1 - rates.size() / 4];
  }

  bool is_fast(double rate) const { return rate >= tolerance_ * usual(); }

  bool in_fast_pair(int unit) const {
    const auto found = partners_.find(unit);
    return found != partners_.end() && std::any_of(found->second.begin(), found->second.end(),
                                                   [&](const auto& pair) { return is_fast(pair.second); });
  }

  std::size_t pairs_of(int unit) const {
    const auto found = partners_.find(unit);
    return found == partners_.end() ? 0 : found->second.size();
  }

  bool were_paired(int a, int b) const {
    const auto found = partners_.find(a);
    return found != partners_.end() && found->second.count(b) > 0;
  }

  /// Pairs each unit that may be slow with one that is not, or else with any. False: nothing is left to be measured.
  bool examine() {
    std::vector<Units> pairs;
    std::set<int> busy;
    for (const Units& group : groups_) {
      for (const int unit : group) {
        // The one pair of three units is nothing to compare with.
        const bool known = group.size() > 3 && in_fast_pair(unit);
        if (known || pairs_of(unit) >= 2 || busy.count(unit) > 0) continue;
        const int* partner = nullptr;
        for (const int& other : group) {
          if (other == unit || busy.count(other) > 0 || were_paired(unit, other)) continue;
          if (partner == nullptr || (in_fast_pair(other) && !in_fast_pair(*partner))) partner = &other;
        }
        if (partner == nullptr) continue;
        busy.insert({unit, *partner});
        pairs.push_back({std::min(unit, *partner), std::max(unit, *partner)});
      }
    }
    if (!pairs.empty()) run_sets(pairs);
    return !pairs.empty();
  }

  void name_units() {
    for (const Units& group : groups_) {
      for (const int unit : group) {
        if (in_fast_pair(unit) || pairs_of(unit) < 2) continue;
        const auto& pairs = partners_[unit];
        const auto best = std::max_element(pairs.begin(), pairs.end(),
                                           [](const auto& a, const auto& b) { return a.second < b.second; });
        slow_.push_back({{unit}, {}, best->second, usual()});
        slow_units_.insert(unit);
      }
    }
    for (const auto& [units, rate] : rates_) {
      if (units.size() == 2 && !is_fast(rate) && !any_slow(units)) {
        slow_.push_back({{units[0]}, {units[1]}, rate, usual()});
      }
    }
  }

  bool any_slow(const Units& units) const {
    return std::any_of(units.begin(), units.end(), [&](int unit) { return slow_units_.count(unit) > 0; });
  }

  /// Whether a slow way between units of this set has a name already.
  bool way_named(const Units& units) const {
    const auto has = [&](const Units& some) {
      return std::all_of(some.begin(), some.end(),
                         [&](int unit) { return std::find(units.begin(), units.end(), unit) != units.end(); });
    };
    return std::any_of(slow_.begin(), slow_.end(), [&](const SlowPart& part) {
      return !part.others.empty() && has(part.units) && has(part.others);
    });
  }

  void name_ways(const Units& units) {
    if (units.size() < 3) return;
    const auto [low, high] = halves_of(units);
    name_ways(low);
    name_ways(high);
    if (any_slow(units) || way_named(units)) return;
    const double apart = std::min(rate_of(low), rate_of(high));
    if (rates_.at(units) < tolerance_ * apart) narrow(low, high, rates_.at(units), apart);
  }

  /// That of a unit alone is what is usual of pairs.
  double rate_of(const Units& units) const { return units.size() == 1 ? usual() : rates_.at(units); }

  /// The way between these is slow: between which of their halves?
  void narrow(const Units& low, const Units& high, double rate, double apart) {
    const auto parts = [](const Units& units) {
      const auto [first, second] = halves_of(units);
      return first.empty() ? std::vector<Units>{second} : std::vector<Units>{first, second};
    };
    const std::vector<Units> lows = parts(low);
    const std::vector<Units> highs = parts(high);
    std::vector<std::pair<Units, Units>> slow;
    for (std::size_t turn = 0; turn < std::max(lows.size(), highs.size()); ++turn) {
      std::vector<std::pair<Units, Units>> together;  // at the same time
      for (std::size_t i = 0; i < std::min(lows.size(), highs.size()); ++i) {
        const bool more_lows = lows.size() > highs.size();
        together.emplace_back(lows[more_lows ? turn : i], highs[more_lows ? i : (i + turn) % highs.size()]);
      }
      std::vector<Units> sets;
      for (const auto& [a, b] : together) sets.push_back(joined(a, b));
      if (lows.size() * highs.size() > 1) run_sets(sets);
      for (std::size_t i = 0; i < sets.size(); ++i) {
        if (rates_.at(sets[i]) < tolerance_ * apart) slow.push_back(together[i]);
      }
    }
    const std::size_t all = lows.size() * highs.size();
    if (all == 1 || slow.empty() || slow.size() == all) {
      slow_.push_back({low, high, rate, apart});
      return;
    }
    for (const auto& [a, b] : slow) narrow(a, b, rates_.at(joined(a, b)), apart);
  }

  const std::vector<Units>& groups_;
  double tolerance_;
  const MeasureSets& measure_;
  std::vector<SetRate> sets_;
  std::map<Units, double> rates_;
  std::map<int, std::map<int, double>> partners_;  // of units in pairs, and their rates
  std::set<int> slow_units_;
  std::vector<SlowPart> slow_;
};

}  // namespace

Halving halve(const std::vector<std::vector<int>>& groups, double tolerance, const MeasureSets& measure) {
  return Halver(groups, tolerance, measure).run();
}

}  // namespace ddptrain::bench
