#include "runtime/train/report/summary.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cmath>
#include <utility>
#include <vector>

#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// "1.9 +- 0.4": rounded to the first digit of the half width. One more digit if the rounded interval would wrongly
/// include 0.
std::string interval(const Estimate& e, double unit) {
  const auto [value, half] = std::pair(e.value / unit, e.half_width / unit);
  int decimals = half > 0.0 ? std::max(0, -static_cast<int>(std::floor(std::log10(half)))) : 3;
  const double scale = std::pow(10.0, decimals);
  if (std::round(std::abs(value) * scale) <= std::round(half * scale)) ++decimals;
  return fmt::format("{:.{}f} +- {:.{}f}", value, decimals, half, decimals);
}

std::string percent(double fraction, int digits = 3) {
  constexpr double kSmallest = 0.00005;
  return std::abs(fraction) < kSmallest ? "0%" : significant(100.0 * fraction, digits) + "%";
}

std::string line(const std::string& label, const std::string& value, const std::string& note = "") {
  if (note.empty()) return fmt::format("{:<9}{}\n", label, value);
  return fmt::format("{:<9}{:<36}  {}\n", label, value, note);
}

std::string result_line(const RunInfo& info, const RunResult& result) {
  const EpochResult& last = result.epochs.back();
  const std::string loss = last.test_loss < 1e-3 ? significant(last.test_loss) : fmt::format("{:.4f}", last.test_loss);
  const std::string value =
      has_perplexity(info.description.unit)
          ? fmt::format("validation loss {}, perplexity {}", loss, significant(std::exp(last.test_loss)))
          : fmt::format("test accuracy {:.2f}%", 100.0 * last.test_accuracy);
  const std::string left_out =
      result.nonfinite_steps == 0
          ? ""
          : fmt::format(" ({} left out: loss or gradient NaN or infinite)", result.nonfinite_steps);
  const std::string here =
      info.resumed_at == 0 ? ", " : fmt::format(", {} of them here in ", info.steps - info.resumed_at);
  return line("Result", value,
              fmt::format("{}, {}{}{}{} s", counted(info.epochs, "epoch"), counted(info.steps, "step"), left_out, here,
                          significant(result.train_seconds)));
}

/// Empty on CPUs without --peak-tflops.
std::string flops_text(const RunInfo& info, double samples_per_second) {
  const bool gpu = info.description.device != "cpu";
  const double flops = flops_per_device(info, samples_per_second);
  const std::string rate = significant(1e-12 * flops);
  if (info.peak.flops == 0.0) return gpu ? rate + " TFLOP/s per GPU; --peak-tflops N gives MFU" : "";
  return fmt::format("MFU {}: {} of {} TFLOP/s per {}", percent(flops / info.peak.flops), rate,
                     significant(1e-12 * info.peak.flops), gpu ? "GPU" : "rank");
}

std::string speed_line(const RunInfo& info, const RunResult& result) {
  const Rate& rate = result.rate;
  if (rate.windows == 0) return "";
  const auto units = static_cast<double>(info.description.units_per_sample);
  std::string value = fmt::format("{} {}/s", significant(units * rate.median), info.description.unit);
  if (rate.windows > 1)
    value += fmt::format(" ({} to {})", significant(units * rate.min), significant(units * rate.max));
  const bool is_marked_below = result.calibration && info.description.mesh.ranks() > 1;
  if (!result.disturbed.why.empty() && !is_marked_below) value += ", disturbed: " + result.disturbed.why;
  std::string note = flops_text(info, rate.median);
  if (const ClockWindows& clocks = result.clocks; clocks.fell > 0)
    note += fmt::format("; a GPU's clock fell in {} of {} windows", clocks.fell, clocks.known);
  return line("Speed", value, note);
}

/// Whether the interval tells something about the efficiency. Below, it is most of what an efficiency can be.
bool is_known(const Estimate& efficiency) { return efficiency.half_width <= 0.5; }

/// "94.7% (93.2 to 96.2) of linear"; whole numbers if the interval is wider than 10 points.
std::string efficiency_text(const Estimate& efficiency) {
  const double value = 100.0 * efficiency.value;
  const double low = std::max(100.0 * efficiency.low(), 0.0), high = 100.0 * efficiency.high();
  if (!std::isfinite(efficiency.half_width)) return fmt::format("{:.0f}% (one round: no interval) of linear", value);
  if (!is_known(efficiency)) {
    return fmt::format("{:.0f}% of linear, not known better than {:.0f} to {:.0f}%", value, low, high);
  }
  const int decimals = 2.0 * efficiency.half_width <= 0.1 ? 1 : 0;
  return fmt::format("{:.{}f}% ({:.{}f} to {:.{}f}) of linear", value, decimals, low, decimals, high, decimals);
}

std::string scaling_line(const Calibration& c, const Description& run) {
  const std::string text = efficiency_text(c.scaling_efficiency);
  if (!c.disturbed.why.empty()) return line("Scaling", fmt::format("{}, disturbed: {}", text, c.disturbed.why));
  const auto rate = [&](double samples) { return significant(samples * static_cast<double>(run.units_per_sample), 4); };
  const std::string early = c.unspent_limit_seconds ? fmt::format("; {} of {} s sufficed", significant(c.seconds, 2),
                                                                  significant(*c.unspent_limit_seconds))
                                                    : "";
  return line("Scaling", text,
              fmt::format("{} ranks {} {}/s; one rank alone {}{}", run.mesh.ranks(), rate(c.samples_per_second),
                          run.unit, rate(c.baseline_per_second), early));
}

/// The difference of the baseline's rank from the mean rank. Empty within the noise.
std::string rank_0_text(const Estimate& ratio) {
  if (ratio.contains(1.0)) return "";
  return fmt::format(" (rank 0 is {} {} than the mean)", percent(std::abs(ratio.value - 1.0), 2),
                     ratio.value < 1.0 ? "faster" : "slower");
}

/// Names the slowest rank, unless most of the loss goes to ranks that are slowest by turns.
std::string stragglers_text(const Calibration& c) {
  const double above =
      c.compute_step_seconds.empty() ? 0.0 : c.compute_step_seconds[c.slowest_rank] - c.compute_step_mean_seconds;
  if (c.slowest_compute_step_seconds && above < 0.5 * c.stragglers.value)
    return "stragglers (ranks are slowest by turns)";
  return fmt::format("stragglers (rank {} is {} above the mean)", c.slowest_rank,
                     percent(above / c.compute_step_mean_seconds, 2));
}

/// The parts of the overhead whose intervals exclude 0, the largest first.
std::string findings(const Calibration& c, double unit, const char* unit_name) {
  std::vector<std::pair<Estimate, std::string>> parts = {{c.together, "contention" + rank_0_text(c.rank_0)},
                                                         {c.stragglers, stragglers_text(c)},
                                                         {c.exposed, "exposed communication"}};
  std::erase_if(parts, [](const auto& part) { return part.first.contains(0.0); });
  std::sort(parts.begin(), parts.end(), [](const auto& a, const auto& b) { return a.first.value > b.first.value; });
  std::vector<std::string> texts;
  for (const auto& [part, name] : parts)
    texts.push_back(fmt::format("{} {} {}", interval(part, unit), unit_name, name));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string step_line(const Calibration& c) {
  const auto [unit, name] = c.step_seconds >= 1e-3 ? std::pair(1e-3, "ms") : std::pair(1e-6, "us");
  const std::string step = fmt::format("{} {}", significant(c.step_seconds / unit), name);
  if (c.disturbed.by_others) {
    return line("Step", step + (c.counts_waits ? "" : " without waits for cores") + "; causes cannot be told apart");
  }
  const std::string parts = findings(c, unit, name);
  if (!is_known(c.scaling_efficiency)) return line("Step", step);
  if (c.scaling_efficiency.contains(1.0)) {
    return line("Step", step + ", as long as on one rank within the noise" +
                            (parts.empty() ? "" : "; beyond the noise: " + parts));
  }
  const double longer = c.step_seconds - c.alone_seconds;
  return line("Step", fmt::format("{}, {} {} {} than on one rank{}", step, significant(std::abs(longer) / unit, 2),
                                  name, longer > 0.0 ? "longer" : "shorter",
                                  parts.empty() ? "; no single cause beyond the noise" : ": " + parts));
}

std::string lines_of_ranks(const RunInfo& info, const RunResult& result) {
  const Description& run = info.description;
  if (run.mesh.ranks() == 1 || !info.baseline) return "";
  if (!run.mesh.replica_is_one_rank()) return line("Scaling", "not measured: no rank has the whole model");
  if (info.shared_gpus > 0) {
    const std::string gpus = counted(info.shared_gpus, "GPU");
    return line("Scaling", fmt::format("not measured: {} share {}", counted(run.mesh.ranks(), "rank"), gpus));
  }
  const auto& calibration = result.calibration;
  return calibration ? scaling_line(*calibration, run) + step_line(*calibration) : "";
}

/// With M passes, P equal stages would wait (P - 1) / (M + P - 1) of the time.
std::string pipeline_line(const Description& run, const std::optional<double>& waits) {
  if (run.mesh.stages == 1 || (run.device == "cpu" && !waits)) return "";
  const double equal = static_cast<double>(run.mesh.stages - 1) / static_cast<double>(run.passes + run.mesh.stages - 1);
  const std::string seen =
      (waits ? percent(*waits) + " of the time waiting for other stages; " : "") + "equal stages would wait ";
  return line("Pipeline", fmt::format("{}{}", seen, percent(equal)),
              fmt::format("{} stages, passes per step: {}", run.mesh.stages, run.passes));
}

std::string tensor_line(const Description& run, const std::optional<double>& share) {
  if (run.mesh.tensor == 1) return "";
  const std::string split = counted(run.mesh.tensor, "rank") + " split each layer";
  return share ? line("Tensor", percent(*share) + " of the time in sums over split layers", split)
               : line("Tensor", split);
}

/// Communication of the mesh's axes. If the single-rank baseline is measured, the line "Step" has the wait for other
/// replicas.
std::string lines_of_axes(const RunInfo& info, const RunResult& result) {
  const Description& run = info.description;
  if (run.mesh.ranks() == 1) return "";
  std::string lines = pipeline_line(run, result.waits_for_stages) + tensor_line(run, result.in_split_layers);
  if (run.mesh.replicas > 1 && result.waits_for_replicas && !result.calibration) {
    lines += line("Data", percent(*result.waits_for_replicas) + " of the time waiting for gradients and weights",
                  fmt::format("{} replicas, --zero {}", run.mesh.replicas, info.zero));
  }
  std::vector<std::pair<std::string, std::int64_t>> axes;
  for (const Sent& sent : run.sends) {
    if (axes.empty() || axes.back().first != sent.axis) axes.emplace_back(sent.axis, 0);
    axes.back().second += sent.bytes;
  }
  std::vector<std::string> texts;
  for (const auto& [axis, bytes] : axes) {
    texts.push_back(fmt::format("{} {}", axis, size_text(static_cast<std::size_t>(bytes))));
  }
  if (texts.empty()) return lines;
  return lines + line("Sent", fmt::format("{}", fmt::join(texts, ", ")), "by rank 0 in a step");
}

std::string groups_line(const std::optional<OuterTotals>& outer) {
  if (!outer) return "";
  std::string sent =
      fmt::format("{} sent, {} received", size_text(outer->bytes_sent), size_text(outer->bytes_received));
  if (outer->skipped > 0) sent += fmt::format("; skipped entries of the log: {}", outer->skipped);
  return line("Groups",
              fmt::format("{}, which took {} s", counted(outer->exchanges, "exchange"), significant(outer->seconds)),
              sent);
}

std::string memory_line(const RunInfo& info, const std::vector<SensorWindow>& gpus) {
  double used = 0.0;
  for (const SensorWindow& gpu : gpus) used = std::max(used, gpu.memory_used_bytes.max);
  const std::size_t on_host = info.description.host_bytes();
  const std::string host = on_host > 0 ? fmt::format("rank 0 keeps {} on its host", size_text(on_host)) : "";
  if (used == 0.0) return host.empty() ? "" : line("Memory", host);
  return line("Memory", size_text(static_cast<std::size_t>(used)) + " in use on a GPU at most", host);
}

std::string nccl_line(const RunInfo& info, const std::optional<NcclUsage>& nccl) {
  if (!nccl || info.description.mesh.ranks() == 1) return "";
  std::vector<std::string> used = {nccl->algorithm, nccl->protocol, nccl->transport};
  std::erase(used, "unknown");
  return line("NCCL", fmt::format("{}", fmt::join(used, ", ")), "gradients: " + described(info.gradient_path));
}

/// Names the runs that end with this hash.
std::string hash_note(const RunInfo& info, const std::optional<OuterTotals>& outer) {
  if (outer && !outer->rounds) return "depends on when differences arrive";
  const Description& run = info.description;
  if (info.other_tensor) return "depends on when --tp changed";
  const bool alone = run.mesh.replicas > 1 && info.gradient_path.name == "none";
  if (run.virtual_ranks == 0 || alone) return "the same command gives the same hash";
  if (run.mesh.tensor > 1) return fmt::format("the same on every mesh with --tp {}: --virtual-ranks", run.mesh.tensor);
  if (run.virtual_ranks == 1) return "the same command gives the same hash";
  return fmt::format("the same on 1 rank and on {}: --virtual-ranks", run.virtual_ranks);
}

}  // namespace

double flops_per_device(const RunInfo& info, double samples_per_second) {
  const int devices = info.shared_gpus > 0 ? info.shared_gpus : info.description.mesh.ranks();
  return info.description.flop_per_sample * samples_per_second / devices;
}

std::string summary_text(const RunInfo& info, const RunResult& result) {
  return result_line(info, result) + speed_line(info, result) + lines_of_ranks(info, result) +
         lines_of_axes(info, result) + groups_line(result.outer) + memory_line(info, result.gpus) +
         nccl_line(info, result.nccl) + line("Hash", result.parameter_hash, hash_note(info, result.outer));
}

}  // namespace ddptrain
