#include "benchmarks/ddpbench/doctor/diagnosis.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include "runtime/core/error.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain::bench {
namespace {

constexpr double kGpuTolerance = 0.9;  // GPUs of one kind differ by a few percent
constexpr double kOtherwise = 0.05;    // facts that differ by more are named

/// Whether all of several are slow.
bool all_slow(const std::vector<const LinkRate*>& links, double limit) {
  return !links.empty() && std::all_of(links.begin(), links.end(), [&](auto* link) { return link->gb_per_s < limit; });
}

std::string of_usual(double rate, double usual) {
  return fmt::format("{:.0f}% of what is usual ({:.3g})", 100.0 * rate / usual, usual);
}

class Diagnosis {
 public:
  Diagnosis(const Measured& measured, double tolerance)
      : ranks_(measured.ranks),
        links_(measured.links),
        measured_(measured),
        tolerance_(tolerance),
        hosts_(host_names(measured.ranks)) {}

  std::vector<std::string> lines() {
    const bool gpus = !ranks_.empty() && !ranks_.front().gpu.empty();
    low("computes at", "GFLOP/s", gpus ? std::max(tolerance_, kGpuTolerance) : tolerance_,
        [](const RankRates& rank) { return rank.gflops; });
    low(gpus ? "copies from host memory at" : "copies memory at", "GB/s", tolerance_,
        [](const RankRates& rank) { return rank.copy_gb_per_s; });
    if (!links_.empty()) network();
    collectives(
        measured_.hosts, [&](int host) { return hosts_[static_cast<std::size_t>(host)]; },
        [&](int host) { return noted(lowest_rank(hosts_[static_cast<std::size_t>(host)])); });
    collectives(
        measured_.gpus, [&](int rank) { return name_of(at(rank), ranks_); }, [&](int rank) { return noted(at(rank)); });
    if (lines_.empty()) {
      lines_.push_back(fmt::format("No slow one: no host, {} or link is below {:.0f}% of what is usual",
                                   gpus ? "GPU" : "rank", 100.0 * tolerance_));
    }
    return lines_;
  }

 private:
  const RankRates& at(int rank) const { return ranks_[static_cast<std::size_t>(rank)]; }

  const RankRates& lowest_rank(const std::string& host) const {
    return *std::find_if(ranks_.begin(), ranks_.end(), [&](const RankRates& rank) { return rank.host == host; });
  }

  void low(const char* does, const char* unit, double tolerance, const std::function<double(const RankRates&)>& rate) {
    std::vector<double> rates;
    for (const RankRates& rank : ranks_) rates.push_back(rate(rank));
    const double usual = ranks_.size() > 2 ? median(rates) : *std::max_element(rates.begin(), rates.end());
    for (const RankRates& rank : ranks_) {
      if (rate(rank) >= tolerance * usual) continue;
      lines_.push_back(fmt::format("{} is slow: it {} {:.3g} {}, {}{}", name_of(rank, ranks_), does, rate(rank), unit,
                                   of_usual(rate(rank), usual), noted(rank)));
    }
  }

  void network() {
    std::vector<double> rates;
    for (const LinkRate& link : links_) rates.push_back(link.gb_per_s);
    // A slow host slows down half of the links of a ring of four, and more of smaller ones.
    std::sort(rates.begin(), rates.end());
    usual_ = rates[rates.size() - 1 - rates.size() / 4];
    std::vector<const LinkRate*> explained;
    for (const std::string& host : hosts_) {
      const RankRates& rank = lowest_rank(host);
      const auto out = links_of(rank.rank, true);
      const auto in = links_of(rank.rank, false);
      const bool sends = all_slow(out, limit()) && (hosts_.size() > 2 || !all_slow(in, limit()));
      const bool receives = all_slow(in, limit()) && hosts_.size() > 2;
      if (!sends && !receives) continue;
      const auto& slow = sends ? out : in;
      const auto slower = *std::min_element(slow.begin(), slow.end(), by_rate);
      const char* does = sends && receives ? "sends and receives" : sends ? "sends" : "receives";
      lines_.push_back(fmt::format("{} is slow: it {} at {:.3g} GB/s, {}{}", host, does, slower->gb_per_s,
                                   of_usual(slower->gb_per_s, usual_), noted(rank)));
      if (sends) explained.insert(explained.end(), out.begin(), out.end());
      if (receives) explained.insert(explained.end(), in.begin(), in.end());
    }
    for (const LinkRate& link : links_) {
      if (link.gb_per_s >= limit() || std::count(explained.begin(), explained.end(), &link) > 0) continue;
      lines_.push_back(fmt::format("The way from {} to {} is slow: {:.3g} GB/s, {}", at(link.from).host,
                                   at(link.to).host, link.gb_per_s, of_usual(link.gb_per_s, usual_)));
    }
  }

  void collectives(const Halving& halving, const std::function<std::string(int)>& name,
                   const std::function<std::string(int)>& why) {
    const auto names = [&](const std::vector<int>& units) {
      std::vector<std::string> list;
      for (const int unit : units) list.push_back(name(unit));
      return fmt::format("{}", fmt::join(list, ", "));
    };
    for (const SlowPart& part : halving.slow) {
      const std::string rate = fmt::format("at {:.3g} GB/s, {}", part.gb_per_s, of_usual(part.gb_per_s, part.usual));
      if (part.others.empty()) {
        const int unit = part.units.front();
        lines_.push_back(fmt::format("{} is slow: all-reduces with it run {}{}", name(unit), rate, why(unit)));
      } else {
        lines_.push_back(fmt::format("The way between {} and {} is slow: all-reduces over it run {}", names(part.units),
                                     names(part.others), rate));
      }
    }
  }

  static bool by_rate(const LinkRate* a, const LinkRate* b) { return a->gb_per_s < b->gb_per_s; }
  double limit() const { return tolerance_ * usual_; }

  std::vector<const LinkRate*> links_of(int rank, bool out) const {
    std::vector<const LinkRate*> found;
    for (const LinkRate& link : links_) {
      if ((out ? link.from : link.to) == rank) found.push_back(&link);
    }
    return found;
  }

  /// Median over all ranks that have the fact.
  double usual_value(const std::string& what) const {
    std::vector<double> values;
    for (const RankRates& rank : ranks_) {
      for (const RankFact& fact : rank.facts) {
        if (fact.what == what) values.push_back(fact.value);
      }
    }
    return median(values);
  }

  std::string noted(const RankRates& rank) const {
    std::vector<std::string> texts;
    for (const RankFact& fact : rank.facts) {
      const double usual = usual_value(fact.what);
      if (std::abs(fact.value - usual) <= kOtherwise * std::max(std::abs(fact.value), std::abs(usual))) continue;
      texts.push_back(
          fmt::format("{} {:.4g}{}, and {:.4g}{} elsewhere", fact.what, fact.value, fact.unit, usual, fact.unit));
    }
    texts.insert(texts.end(), rank.notes.begin(), rank.notes.end());
    return texts.empty() ? "" : fmt::format(". Different there: {}", fmt::join(texts, "; "));
  }

  const std::vector<RankRates>& ranks_;
  const std::vector<LinkRate>& links_;
  const Measured& measured_;
  double tolerance_;
  double usual_ = 0.0;  // GB/s
  std::vector<std::string> hosts_;
  std::vector<std::string> lines_;
};

/// Share of the readings, in percent.
double share_of(std::uint64_t readings, const SensorWindow& load) {
  return 100.0 * static_cast<double>(readings) / static_cast<double>(load.readings);
}

}  // namespace

std::vector<std::string> host_names(const std::vector<RankRates>& ranks) {
  std::vector<std::string> names;
  for (const RankRates& rank : ranks) {
    if (std::find(names.begin(), names.end(), rank.host) == names.end()) names.push_back(rank.host);
  }
  return names;
}

std::string name_of(const RankRates& rank, const std::vector<RankRates>& ranks) {
  const auto here =
      std::count_if(ranks.begin(), ranks.end(), [&](const RankRates& other) { return other.host == rank.host; });
  if (here == 1) return rank.host;
  const std::string name = fmt::format("rank {} on {}", rank.rank, rank.host);
  return rank.gpu.empty() ? name : fmt::format("{} (GPU {})", name, rank.gpu);
}

std::vector<std::string> diagnosis(const Measured& measured, double tolerance) {
  return Diagnosis(measured, tolerance).lines();
}

std::vector<RankFact> gpu_facts(const GpuLinks& links, const SensorWindow& load) {
  std::vector<RankFact> facts;
  const auto add = [&](const char* what, const std::optional<double>& value, const char* unit = "") {
    if (value) facts.push_back({what, *value, unit});
  };
  const auto add_mean = [&](const char* what, const SensorWindow::Spread& spread, const char* unit) {
    if (spread.readings > 0) facts.push_back({what, spread.mean(), unit});
  };
  add_mean("SM clock", load.sm_mhz, " MHz");
  add_mean("memory clock", load.memory_mhz, " MHz");
  add_mean("power", load.watts, " W");
  add_mean("temperature", load.celsius, " C");
  add("highest SM clock", links.sm_mhz_max, " MHz");
  add("PCIe generation", links.pcie_generation);
  add("PCIe lanes", links.pcie_width);
  add("NVLinks", links.nvlinks);
  for (std::size_t i = 0; i < load.throttled.size() && load.readings > 0; ++i) {
    facts.push_back({fmt::format("clock held down by {} in", kThrottleReasons[i]), share_of(load.throttled[i], load),
                     "% of readings"});
  }
  return facts;
}

std::vector<std::string> gpu_findings(const std::string& name, const GpuLinks& links, const SensorWindow& load) {
  std::vector<std::string> lines;
  const auto below = [](const std::optional<double>& now, const std::optional<double>& most) {
    return now && most && *now < *most;
  };
  if (below(links.pcie_generation, links.pcie_generation_max) || below(links.pcie_width, links.pcie_width_max)) {
    const auto number = [](const std::optional<double>& value) { return value ? fmt::format("{:g}", *value) : "?"; };
    lines.push_back(fmt::format(
        "{}: its PCIe link runs as generation {} x{} under load, and could as {} x{}. Reseat card or cable; "
        "see lspci -vv (LnkSta), and the slot's setting in the firmware.",
        name, number(links.pcie_generation), number(links.pcie_width), number(links.pcie_generation_max),
        number(links.pcie_width_max)));
  }
  for (const auto& [reason, advice] : std::initializer_list<std::pair<std::string_view, const char*>>{
           {"hw_slowdown", "See nvidia-smi -q -d PERFORMANCE for heat or power."},
           {"sw_thermal_slowdown", "It is hot: look at fans, air flow and coolant."},
           {"hw_thermal_slowdown", "It is too hot: look at fans, air flow and coolant."},
           {"hw_power_brake_slowdown", "The host's power supply holds it back: look at power supplies and caps."}}) {
    const auto place = std::find(kThrottleReasons.begin(), kThrottleReasons.end(), reason) - kThrottleReasons.begin();
    const std::uint64_t readings = load.throttled[static_cast<std::size_t>(place)];
    if (readings == 0) continue;
    lines.push_back(fmt::format("{}: its clock is held down ({}) in {:.0f}% of readings under load. {}", name, reason,
                                share_of(readings, load), advice));
  }
  if (links.nvlink_errors.value_or(0.0) > 0.0) {
    lines.push_back(
        fmt::format("{}: {:.0f} errors of its NVLinks since the driver started. See nvidia-smi nvlink "
                    "--errorcounters; if they grow, have GPU and board checked.",
                    name, *links.nvlink_errors));
  }
  return lines;
}

}  // namespace ddptrain::bench
