#include "runtime/train/report.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "runtime/core/progress.h"
#include "runtime/core/writable.h"
#include "runtime/train/checkpoint_writer.h"
#include "runtime/train/sensor_report.h"
#include "runtime/train/tensorboard_file.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

Json json_of(const std::optional<double>& value) { return value ? Json(*value) : Json(nullptr); }

/// Bytes that are not UTF-8 are replaced.
std::string utf8(const std::string& text) {
  return Json::parse(Json(text).dump(-1, ' ', false, Json::error_handler_t::replace)).get<std::string>();
}

/// In Markdown.
std::string as_code(const std::string& text) {
  std::string code = "    ";
  for (const char c : text) code += c == '\n' ? std::string("\n    ") : std::string(1, c);
  return code;
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

Report::Report(RunInfo info, const ReportFiles& files, Progress* progress)
    : info_(std::move(info)), files_(files), progress_(progress) {}

void Report::print(const std::string& text) const {
  if (progress_ != nullptr) return progress_->print(text);
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

/// Adds the time; bytes that are not UTF-8 are replaced.
void Report::write(Json line) const {
  if (files_.metrics == nullptr) return;
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  line["time"] = static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000.0;
  files_.metrics->write(line.dump(-1, ' ', false, Json::error_handler_t::replace));
}

void Report::scalar(const std::string& tag, std::int64_t step, const std::optional<double>& value) const {
  if (files_.tensorboard != nullptr && value) files_.tensorboard->scalar(tag, step, *value);
}

void Report::start() {
  Json line = {{"event", "start"}};
  line.update(info_fields(info_));
  line["topology"] = info_.topology;
  line["environment"] = info_.environment;
  line["configuration"] = info_.configuration;
  write(std::move(line));
  if (files_.tensorboard == nullptr) return;
  std::string table = "| flag | value |\n| --- | --- |\n";
  for (const auto& [flag, value] : info_.configuration) table += fmt::format("| --{} | `{}` |\n", flag, value);
  files_.tensorboard->text("configuration", 0, utf8(table));
}

void Report::step(const StepResult& result) {
  const double rate = units(result.samples_per_second.value_or(0.0));
  const std::string throughput = run().unit + "_per_second";
  spdlog::info("step {}  loss {:.4f}  {:.0f} {}/s", result.step, result.loss, rate, run().unit);
  Json line = {{"event", "step"}, {"epoch", result.epoch}, {"step", result.step}, {"samples", result.samples}};
  if (has_text()) line["tokens"] = result.samples * run().units_per_sample;
  line["loss"] = result.loss;
  line["learning_rate"] = result.learning_rate;
  line["gradient_norm"] = json_of(result.gradient_norm);
  line[throughput] = result.samples_per_second ? Json(rate) : Json(nullptr);
  line["step_seconds"] = json_of(result.step_seconds);
  line["exposed_comm_seconds"] = json_of(result.exposed_comm_seconds);
  const auto gpus = sensor_totals(result.gpus);
  for (const auto& [name, value] : gpus) line[name] = value;
  write(std::move(line));
  scalar("train/loss", result.step, result.loss);
  scalar("train/learning_rate", result.step, result.learning_rate);
  scalar("train/gradient_norm", result.step, result.gradient_norm);
  for (const auto& [name, value] : gpus) scalar("gpus/" + name, result.step, value);
  if (!result.samples_per_second) return;
  scalar("speed/" + throughput, result.step, rate);
  scalar("speed/step_seconds", result.step, result.step_seconds);
  scalar("speed/exposed_comm_seconds", result.step, result.exposed_comm_seconds);
}

void Report::epoch(const EpochResult& result) {
  const std::string validation = has_text() ? fmt::format("  validation loss {:.4f}  perplexity {:.2f}",
                                                          result.test_loss, std::exp(result.test_loss))
                                            : "";
  print(fmt::format("Epoch {}/{}\nloss {:.4f}  accuracy {:.4f}{}\n{}/sec: {:.2f}\n", result.epoch, info_.epochs,
                    result.train_loss, result.test_accuracy, validation, capital_unit(),
                    units(result.samples_per_second)));
  Json line = {{"event", "epoch"},
               {"epoch", result.epoch},
               {"step", result.step},
               {"loss", result.train_loss},
               {"last_loss", result.last_loss},
               {"train_accuracy", result.train_accuracy},
               {"test_loss", result.test_loss},
               {"accuracy", result.test_accuracy},
               {run().unit + "_per_second", units(result.samples_per_second)}};
  if (has_text()) line["perplexity"] = std::exp(result.test_loss);
  write(std::move(line));
  scalar("epoch/mean_loss", result.step, result.train_loss);
  scalar("epoch/train_accuracy", result.step, result.train_accuracy);
  tested(result.step, result.test_loss, result.test_accuracy);
}

void Report::evaluation(std::int64_t step, double loss, double accuracy) {
  const std::string perplexity = has_text() ? fmt::format("  perplexity {:.2f}", std::exp(loss)) : "";
  print(fmt::format("step {}  test loss {:.4f}  accuracy {:.4f}{}\n", step, loss, accuracy, perplexity));
  Json line = {{"event", "evaluation"}, {"step", step}, {"test_loss", loss}, {"accuracy", accuracy}};
  if (has_text()) line["perplexity"] = std::exp(loss);
  write(std::move(line));
  tested(step, loss, accuracy);
}

void Report::tested(std::int64_t step, double loss, double accuracy) const {
  scalar("test/loss", step, loss);
  scalar("test/accuracy", step, accuracy);
  if (has_text()) scalar("test/perplexity", step, std::exp(loss));
}

void Report::sample(std::int64_t step, const std::string& text) {
  print(fmt::format("step {}  sample: {}\n", step, text));
  write({{"event", "sample"}, {"step", step}, {"text", text}});
  if (files_.tensorboard != nullptr) files_.tensorboard->text("sample", step, as_code(utf8(text)));
}

void Report::restart(std::int64_t step, const std::string& checkpoint) {
  spdlog::info("Resumed at step {} from {}", step, checkpoint);
  write({{"event", "restart"}, {"step", step}, {"checkpoint", checkpoint}});
}

void Report::checkpoint(const WrittenCheckpoint& checkpoint) {
  if (checkpoint.error.empty()) {
    spdlog::info("Checkpoint {}: {:.1f} MB, training paused for {:.1f} ms, written in {:.2f} s", checkpoint.path,
                 1e-6 * static_cast<double>(checkpoint.bytes), 1e3 * checkpoint.pause_seconds,
                 checkpoint.write_seconds);
  }
  write({{"event", "checkpoint"},
         {"step", checkpoint.step},
         {"path", checkpoint.path},
         {"bytes", checkpoint.bytes},
         {"pause_seconds", checkpoint.pause_seconds},
         {"write_seconds", checkpoint.write_seconds},
         {"error", checkpoint.error}});
}

void Report::interrupted(std::int64_t step, const std::string& signal, const std::string& checkpoint) {
  write({{"event", "interrupted"}, {"step", step}, {"signal", signal}, {"checkpoint", checkpoint}});
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
  line["last_loss"] = last.last_loss;
  line["accuracy"] = last.test_accuracy;
  line["test_loss"] = last.test_loss;
  if (has_text()) line["perplexity"] = std::exp(last.test_loss);
  line["accuracy_per_epoch"] = Json::array();
  for (const EpochResult& epoch : result.epochs) line["accuracy_per_epoch"].push_back(epoch.test_accuracy);
  line["startup_seconds"] = result.startup_seconds;
  for (const auto& [name, seconds] : info_.startup) line["startup_phases"][name] = seconds;
  line["train_seconds"] = result.train_seconds;
  line["nonfinite_steps"] = result.nonfinite_steps;
  line["gpus"] = sensor_fields(result.gpus);
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
  line["configuration"] = info_.configuration;
  write(std::move(line));
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
  if (!result.gpus.empty()) row("GPUs while training", sensor_text(result.gpus));
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
