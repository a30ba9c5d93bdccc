#include "runtime/train/report.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "runtime/core/printable.h"
#include "runtime/core/writable.h"
#include "runtime/train/checkpoint_writer.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string percent(double fraction) { return fmt::format("{:.1f}%", 100.0 * fraction); }

Json info_fields(const RunInfo& info) {
  const Description& run = info.description;
  Json fields = {{"version", info.version},
                 {"model", run.model},
                 {"device", run.device},
                 {"device_name", info.device_name},
                 {"precision", run.precision},
                 {"world_size", run.world_size},
                 {"nodes", info.nodes},
                 {"local_world_size", info.local_world_size},
                 {"batch_per_rank", run.batch_per_rank},
                 {"grad_accum", run.grad_accum},
                 {"virtual_ranks", run.virtual_ranks},
                 {"zero", info.zero},
                 {"comm_dtype", run.gradient_type},
                 {"gradient_path", info.gradient_path.name},
                 {"gradient_path_reason", info.gradient_path.reason},
                 {"steps", info.steps},
                 {"epochs", info.epochs},
                 {"parameters", run.parameters}};
  for (const auto& [name, size] : info.shape) fields[name] = size;
  return fields;
}

Json nccl_field(const std::optional<NcclUsage>& nccl) {
  if (!nccl) return nullptr;
  return {{"version", nccl->version},
          {"algorithm", nccl->algorithm},
          {"protocol", nccl->protocol},
          {"channels", nccl->channels},
          {"transport", nccl->transport}};
}

void add_calibration(Json& line, const std::optional<Calibration>& calibration, const Description& run) {
  line["baseline_per_second"] = nullptr;
  line["scaling_efficiency"] = nullptr;
  line["exposed_comm_fraction"] = nullptr;
  if (!calibration) return;
  const auto units = static_cast<double>(run.units_per_sample);
  line["baseline_per_second"] = units * calibration->baseline_per_second;
  line["scaling_efficiency"] = calibration->scaling_efficiency;
  line["exposed_comm_fraction"] = calibration->exposed_comm_fraction;
  line[run.unit + "_per_second_beside_baseline"] = units * calibration->samples_per_second;
  line["step_seconds"] = calibration->step_seconds;
  line["step_seconds_without_communication"] = calibration->step_seconds_without_communication;
  line["step_seconds_without_communication_mean"] = calibration->step_seconds_without_communication_mean;
  line["step_seconds_without_communication_per_rank"] = calibration->step_seconds_without_communication_per_rank;
  line["communication_seconds"] = calibration->communication_seconds;
  line["calibration_rounds"] = calibration->rounds;
}

std::string straggler_text(const Calibration& c) {
  const std::vector<double>& ranks = c.step_seconds_without_communication_per_rank;
  const auto slowest = std::max_element(ranks.begin(), ranks.end());
  const double mean = c.step_seconds_without_communication_mean;
  const double lost = c.step_seconds_without_communication - mean;
  return fmt::format("{} of a step  ({:.1f} us from the mean to the slowest rank; rank {} is {} above the mean)",
                     percent(lost / c.step_seconds), 1e6 * lost, slowest - ranks.begin(),
                     percent(*slowest / mean - 1.0));
}

}  // namespace

std::string described(const GradientPath& path) {
  return path.reason.empty() ? path.text : fmt::format("{} ({})", path.text, path.reason);
}

namespace {

/// A run that was killed, or whose disk was full, may have left the beginning of a line.
void drop_cut_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t whole = text.rfind('\n') + 1;  // 0 where there is none
  if (whole < text.size()) std::filesystem::resize_file(path, whole);
}

}  // namespace

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  require_writable("--metrics", path);
  if (append && std::filesystem::is_regular_file(path)) drop_cut_line(path);
  file_.open(path, append ? std::ios::app : std::ios::out);
}

void MetricsFile::write(const std::string& line) {
  file_ << line << '\n' << std::flush;
  if (!file_) fail("writing to the metrics file {} failed", path_);
}

Report::Report(RunInfo info, MetricsFile* metrics) : info_(std::move(info)), metrics_(metrics) {}

void Report::start() {
  if (metrics_ == nullptr) return;
  Json line = {{"event", "start"}};
  line.update(info_fields(info_));
  line["topology"] = info_.topology;
  line["environment"] = info_.environment;
  metrics_->write(line.dump());
}

void Report::progress(std::int64_t step, double samples_per_second) {
  clear_progress();
  const std::string line =
      fmt::format("step {}/{}  {:.0f} {}/s", step, info_.steps, units(samples_per_second), run().unit);
  progress_width_ = line.size();
  print(line);
}

void Report::clear_progress() {
  if (progress_width_ > 0) print(fmt::format("\r{:{}}\r", "", progress_width_));
  progress_width_ = 0;
}

void Report::epoch(const EpochResult& result) {
  clear_progress();
  print(fmt::format("Epoch {}/{}\nloss {:.4f}  accuracy {:.4f}\n{}/sec: {:.2f}\n", result.epoch, info_.epochs,
                    result.train_loss, result.test_accuracy, capital_unit(), units(result.samples_per_second)));
  if (metrics_ == nullptr) return;
  metrics_->write(Json{{"event", "epoch"},
                       {"epoch", result.epoch},
                       {"step", result.step},
                       {"loss", result.train_loss},
                       {"train_accuracy", result.train_accuracy},
                       {"test_loss", result.test_loss},
                       {"accuracy", result.test_accuracy},
                       {run().unit + "_per_second", units(result.samples_per_second)}}
                      .dump());
}

void Report::evaluation(std::int64_t step, double loss, double accuracy) {
  clear_progress();
  print(fmt::format("step {}  test loss {:.4f}  accuracy {:.4f}\n", step, loss, accuracy));
  if (metrics_ == nullptr) return;
  metrics_->write(Json{{"event", "evaluation"}, {"step", step}, {"test_loss", loss}, {"accuracy", accuracy}}.dump());
}

void Report::sample(std::int64_t step, const std::string& text) {
  clear_progress();
  print(fmt::format("step {}  sample: {}\n", step, printable_text(text)));
  if (metrics_ == nullptr) return;
  constexpr auto kReplace = nlohmann::json::error_handler_t::replace;  // bytes need not be UTF-8
  metrics_->write(Json{{"event", "sample"}, {"step", step}, {"text", text}}.dump(-1, ' ', false, kReplace));
}

void Report::restart(std::int64_t step, const std::string& checkpoint) {
  spdlog::info("Resumed at step {} from {}", step, checkpoint);
  if (metrics_ == nullptr) return;
  metrics_->write(Json{{"event", "restart"}, {"step", step}, {"checkpoint", checkpoint}}.dump());
}

void Report::checkpoint(const WrittenCheckpoint& checkpoint) {
  clear_progress();
  if (checkpoint.error.empty()) {
    spdlog::info("Checkpoint {}: {:.1f} MB, training paused for {:.1f} ms, written in {:.2f} s", checkpoint.path,
                 1e-6 * static_cast<double>(checkpoint.bytes), 1e3 * checkpoint.pause_seconds,
                 checkpoint.write_seconds);
  }
  if (metrics_ == nullptr) return;
  metrics_->write(Json{{"event", "checkpoint"},
                       {"step", checkpoint.step},
                       {"path", checkpoint.path},
                       {"bytes", checkpoint.bytes},
                       {"pause_seconds", checkpoint.pause_seconds},
                       {"write_seconds", checkpoint.write_seconds},
                       {"error", checkpoint.error}}
                      .dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Report::interrupted(std::int64_t step, const std::string& signal, const std::string& checkpoint) {
  clear_progress();
  if (metrics_ == nullptr) return;
  metrics_->write(
      Json{{"event", "interrupted"}, {"step", step}, {"signal", signal}, {"checkpoint", checkpoint}}.dump());
}

std::string Report::capital_unit() const {
  std::string unit = run().unit;
  if (!unit.empty()) unit[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0])));
  return unit;
}

double Report::mfu(double samples_per_second) const {
  return run().flop_per_sample * samples_per_second / (run().world_size * info_.peak.flops);
}

std::string Report::mfu_text(double samples_per_second) const {
  if (info_.peak.flops == 0.0) {
    return run().device == "cpu" ? "n/a" : "n/a  (the peak rate of this GPU is not known: --peak-tflops)";
  }
  return fmt::format("{}  (of {:.1f} TFLOP/s: {})", percent(mfu(samples_per_second)), 1e-12 * info_.peak.flops,
                     info_.peak.source);
}

void Report::summary(const RunResult& result) {
  table(result);
  if (metrics_ == nullptr) return;
  Json line = {{"event", "summary"}};
  line.update(info_fields(info_));
  line[run().unit + "_per_second"] = units(result.rate.median);
  line[run().unit + "_per_second_min"] = units(result.rate.min);
  line[run().unit + "_per_second_max"] = units(result.rate.max);
  line["windows"] = result.rate.windows;
  add_calibration(line, result.calibration, run());
  line["mfu"] = info_.peak.flops > 0.0 ? Json(mfu(result.rate.median)) : Json(nullptr);
  line["peak_flops"] = info_.peak.flops > 0.0 ? Json(info_.peak.flops) : Json(nullptr);
  line["peak_source"] = info_.peak.source;
  const EpochResult last = result.epochs.back();
  line["loss"] = last.train_loss;
  line["accuracy"] = last.test_accuracy;
  line["test_loss"] = last.test_loss;
  line["accuracy_per_epoch"] = Json::array();
  for (const EpochResult& epoch : result.epochs) line["accuracy_per_epoch"].push_back(epoch.test_accuracy);
  line["startup_seconds"] = result.startup_seconds;
  for (const auto& [name, seconds] : info_.startup) line["startup_phases"][name] = seconds;
  line["train_seconds"] = result.train_seconds;
  line["nonfinite_steps"] = result.nonfinite_steps;
  line["parameter_hash"] = result.parameter_hash;
  if (const auto& totals = result.checkpoints) {
    line["checkpoints"] = totals->written;
    line["checkpoints_failed"] = totals->failed;
    line["checkpoint_bytes"] = totals->bytes;
    line["checkpoint_pause_seconds"] = totals->pause_seconds;
    line["checkpoint_pause_seconds_total"] = totals->pause_seconds_total;
    line["checkpoint_write_seconds"] = totals->write_seconds;
  }
  line["description"] = Json::parse(run().summary());
  line["topology"] = info_.topology;
  line["nccl"] = nccl_field(result.nccl);
  line["environment"] = info_.environment;
  metrics_->write(line.dump());
}

void Report::table(const RunResult& result) const {
  std::string text = "\n";
  const auto row = [&](const std::string& name, const std::string& value) {
    text += fmt::format("{:<26}{}\n", name, value);
  };
  const Rate& rate = result.rate;
  row("Ranks", fmt::format("{} on {} node{}", run().world_size, info_.nodes, info_.nodes == 1 ? "" : "s"));
  if (run().virtual_ranks > 0) row("Virtual ranks", fmt::format("{}", run().virtual_ranks));
  row(capital_unit() + "/sec, all ranks",
      fmt::format("{:.0f}  (median of {} windows, {:.0f} to {:.0f})", units(rate.median), rate.windows, units(rate.min),
                  units(rate.max)));
  row(capital_unit() + "/sec per rank", fmt::format("{:.0f}", units(rate.median) / run().world_size));
  if (run().world_size > 1) row("Gradients", described(info_.gradient_path));
  if (result.calibration && run().world_size > 1) {
    const Calibration& c = *result.calibration;
    row("Beside the baseline", fmt::format("{:.0f}  (all ranks, {} windows taken in turn with the baseline's)",
                                           units(c.samples_per_second), c.rounds));
    row("One-rank baseline", fmt::format("{:.0f}  (rank 0 alone in this job)", units(c.baseline_per_second)));
    row("Scaling efficiency", percent(c.scaling_efficiency));
    row("Exposed communication", fmt::format("{} of {:.1f} us  (step {:.1f} us, without communication {:.1f} us)",
                                             percent(c.exposed_comm_fraction), 1e6 * c.communication_seconds,
                                             1e6 * c.step_seconds, 1e6 * c.step_seconds_without_communication));
    row("Stragglers", straggler_text(c));
  } else if (result.calibration) {
    row("Scaling efficiency", "100.0%  (one rank is its own baseline)");
  }
  row("MFU", mfu_text(rate.median));
  std::string phases;
  for (const auto& [name, seconds] : info_.startup)
    phases += fmt::format("{}{} {:.2f}", phases.empty() ? "" : ", ", name, seconds);
  row("Start to first step", fmt::format("{:.2f} s  ({})", result.startup_seconds, phases));
  row("Training", fmt::format("{:.2f} s, {} steps", result.train_seconds, info_.steps));
  if (result.nonfinite_steps > 0)
    row("Steps left out", fmt::format("{}  (loss or gradient NaN or infinite)", result.nonfinite_steps));
  if (const auto& totals = result.checkpoints) {
    row("Checkpoints", fmt::format("{} of {:.1f} MB  (training paused for {:.1f} ms at most, {:.1f} ms in all)",
                                   totals->written, 1e-6 * static_cast<double>(totals->bytes),
                                   1e3 * totals->pause_seconds, 1e3 * totals->pause_seconds_total));
  }
  row("Parameter hash", result.parameter_hash);
  print(text);
}

}  // namespace ddptrain
