#include "runtime/train/report/report.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <cctype>
#include <chrono>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <tuple>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/file_lock.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/log.h"
#include "runtime/core/text.h"
#include "runtime/train/report/sensor_fields.h"
#include "runtime/train/report/summary.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

Json info_fields(const RunInfo& info) {
  const Description& run = info.description;
  Json fields = {{"version", info.version},
                 {"model", run.model},
                 {"device", run.device},
                 {"device_name", info.device_name},
                 {"precision", run.precision},
                 {"world_size", run.mesh.ranks()},
                 {"nodes", info.nodes},
                 {"local_world_size", info.local_world_size},
                 {"shared_gpus", info.shared_gpus},
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

void warn_of_shared_cores(const Calibration& c) {
  constexpr double kToItself = 0.9;
  const auto least = std::min_element(c.cpu_share.begin(), c.cpu_share.end());
  if (least == c.cpu_share.end() || *least >= kToItself) return;
  spdlog::warn("Rank {} got a core {:.0f}% of the time: do not trust the scaling", least - c.cpu_share.begin(),
               100.0 * *least);
}

/// Share of the FLOP that a causal mask does not hide. As in MFU, the backward pass counts twice the forward pass.
double causal_share(const Description& run) {
  double hidden = 0.0;
  for (const LayerWork& layer : run.layers) hidden += layer.forward - layer.forward_causal;
  return 1.0 - 3.0 * hidden / run.flop_per_sample;
}

const char* name_of(TimedWork work) {
  switch (work) {
    case TimedWork::alone:
      return "alone";
    case TimedWork::step:
      return "step";
    case TimedWork::compute_step:
      return "silent";
    case TimedWork::communication:
      return "communication";
  }
  return "";
}

Json window_fields(const TimedWindow& window) {
  return {{"work", name_of(window.work)},      {"steps", window.steps},
          {"seconds", window.seconds},         {"core_wait_seconds", window.waited},
          {"cpu_seconds", window.cpu_seconds}, {"undelayed_step_seconds", window.undelayed}};
}

Json round_fields(const CalibrationRound& round) {
  const auto known = [](double mhz) { return mhz > 0.0 ? Json(mhz) : Json(nullptr); };
  Json windows = Json::array();
  for (const TimedWindow& window : round.windows) windows.push_back(window_fields(window));
  Json exposed = Json::array();
  Json stragglers = Json::array();
  for (const StepGroup& group : round.groups) {
    exposed.push_back(group.exposed);
    stragglers.push_back(group.stragglers);
  }
  return {{"alone_seconds", round.alone},
          {"step_seconds", round.step},
          {"silent_seconds", round.compute_step},
          {"communication_seconds", round.communication},
          {"exposed_seconds", std::move(exposed)},
          {"straggler_seconds", std::move(stragglers)},
          {"slowed_down_seconds", round.slowed_down},
          {"compute_beside_seconds", round.compute_beside},
          {"compute_silent_seconds", round.compute_without},
          {"alone_sm_mhz", known(round.alone_sm_mhz)},
          {"step_sm_mhz", known(round.step_sm_mhz)},
          {"clock_fell", round.clock_fell},
          {"windows", std::move(windows)}};
}

void add_disturbance(Json& line, const Disturbance& disturbance) {
  line["disturbed"] = disturbance.why;
  line["disturbed_by_others"] = disturbance.by_others;
}

/// JSON writes an infinite half width as null.
void add_calibration(Json& line, const std::optional<Calibration>& calibration, const Description& run) {
  line["baseline_per_second"] = nullptr;
  line["scaling_efficiency"] = nullptr;
  line["exposed_comm_fraction"] = nullptr;
  if (!calibration) return;
  const Calibration& c = *calibration;
  const auto units = static_cast<double>(run.units_per_sample);
  line["baseline_per_second"] = units * c.baseline_per_second;
  line[run.unit + "_per_second_beside_baseline"] = units * c.samples_per_second;
  line["step_seconds"] = c.step_seconds;
  line["step_seconds_alone"] = c.alone_seconds;
  line["step_seconds_without_communication"] = c.compute_step_slowest_seconds();
  line["step_seconds_without_communication_mean"] = c.compute_step_mean_seconds;
  line["step_seconds_without_communication_per_rank"] = c.compute_step_seconds;
  line["cpu_share_per_rank"] = c.cpu_share;
  line["communication_seconds"] = c.communication_seconds;
  if (!c.rounds.empty()) add_disturbance(line, c.disturbed);
  line["cores_taken"] = c.cores_taken;
  line["core_wait"] = c.core_wait;
  const bool has_interval = std::isfinite(c.scaling_efficiency.half_width);
  line["scaling_efficiency_low"] = has_interval ? Json(std::max(0.0, c.scaling_efficiency.low())) : Json(nullptr);
  line["scaling_efficiency_high"] = c.scaling_efficiency.high();
  for (const auto& [name, estimate, scale] : {std::tuple{"scaling_efficiency", c.scaling_efficiency, 1.0},
                                              {"exposed_comm_fraction", c.exposed_fraction, 1.0},
                                              {"rank_0_step_ratio", c.rank_0, 1.0},
                                              {"together_us", c.together, 1e6},
                                              {"stragglers_us", c.stragglers, 1e6},
                                              {"exposed_comm_us", c.exposed, 1e6},
                                              {"slowed_down_us", c.slowed_down, 1e6},
                                              {"waiting_us", c.waiting, 1e6}}) {
    line[name] = scale * estimate.value;
    line[std::string(name) + "_half_width"] = scale * estimate.half_width;
  }
  line["calibration_rounds"] = c.rounds.size();
  line["calibration_limit_seconds"] = c.limit_seconds;
  line["calibration_seconds"] = c.seconds;
  line["calibration"] = Json::array();
  for (const CalibrationRound& round : c.rounds) line["calibration"].push_back(round_fields(round));
}

/// A sample as a terminal can show it.
std::string visible(const SampledText& sample) {
  if (sample.text) return without_controls(*sample.text);
  return fmt::format("{} | {}", fmt::join(sample.prompt, " "), fmt::join(sample.tokens, " "));
}

/// Removes the beginning of a line that a killed run or a full disk has left at the end of the file.
void drop_cut_line(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t whole = text.rfind('\n') + 1;  // 0 without a newline
  if (whole < text.size()) std::filesystem::resize_file(path, whole);
}

/// Holds the lock of a regular file, which is made if it is missing. File systems without locks have none.
Descriptor lock_of(const std::string& path) {
  std::error_code ignored;
  if (std::filesystem::exists(path, ignored) && !std::filesystem::is_regular_file(path, ignored)) return Descriptor();
  Descriptor file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  if (file && try_lock(file) == FileLock::of_another) {
    fail("--metrics {}: another run writes it. Wait for its end, or give another file.", path);
  }
  return file;
}

}  // namespace

std::string described(const GradientPath& path) {
  return path.reason.empty() ? path.text : fmt::format("{} ({})", path.text, path.reason);
}

MetricsFile::MetricsFile(const std::string& path, bool append) : path_(path) {
  const Descriptor pipe = require_writable("--metrics", path);
  lock_ = lock_of(path);
  if (append && std::filesystem::is_regular_file(path)) drop_cut_line(path);
  file_.open(path, append ? std::ios::app : std::ios::out);
}

void MetricsFile::write(Json line) {
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  line["time"] = static_cast<double>(std::chrono::duration_cast<std::chrono::milliseconds>(now).count()) / 1000.0;
  file_ << line.dump(-1, ' ', false, Json::error_handler_t::replace) << '\n' << std::flush;
  if (!file_) fail("writing to the metrics file {} failed", path_);
}

Report::Report(RunInfo info, MetricsFile* metrics) : info_(std::move(info)), metrics_(metrics) {}

void Report::write(Json line) const {
  if (metrics_ != nullptr) metrics_->write(std::move(line));
}

void Report::start() {
  Json line = {{"event", "start"}};
  line.update(info_fields(info_));
  line["topology"] = info_.topology;
  line["environment"] = info_.environment;
  line["configuration"] = info_.configuration;
  write(std::move(line));
}

void Report::step(const StepResult& result) {
  const double rate = units(result.samples_per_second.value_or(0.0));
  Json line = {{"event", "step"}, {"epoch", result.epoch}, {"step", result.step}, {"samples", result.samples}};
  if (has_text()) line["tokens"] = result.samples * run().units_per_sample;
  line["loss"] = result.loss;
  line["learning_rate"] = result.learning_rate;
  line["gradient_norm"] = result.gradient_norm;
  line[run().unit + "_per_second"] = result.samples_per_second ? Json(rate) : Json(nullptr);
  line["step_seconds"] = result.step_seconds;
  line["exposed_comm_seconds"] = result.exposed_comm_seconds;
  line.update(sensor_totals(result.gpus));
  write(std::move(line));
}

void Report::epoch(const EpochResult& result) {
  const std::string validation = has_text() ? fmt::format("  validation loss {:.4f}  perplexity {:.2f}",
                                                          result.test_loss, std::exp(result.test_loss))
                                            : "";
  const double rate = units(result.samples_per_second);
  const std::string throughput = std::isnan(rate) ? "" : fmt::format("{}/sec: {:.2f}\n", capital_unit(), rate);
  print(fmt::format("Epoch {}/{}\nloss {:.4f}  accuracy {:.4f}{}\n{}", result.epoch, info_.epochs, result.train_loss,
                    result.test_accuracy, validation, throughput));
  Json line = {{"event", "epoch"},
               {"epoch", result.epoch},
               {"step", result.step},
               {"loss", result.train_loss},
               {"last_loss", result.last_loss},
               {"train_accuracy", result.train_accuracy},
               {"test_loss", result.test_loss},
               {"accuracy", result.test_accuracy},
               {run().unit + "_per_second", rate}};
  if (has_text()) line["perplexity"] = std::exp(result.test_loss);
  write(std::move(line));
}

void Report::evaluation(std::int64_t step, double loss, double accuracy) {
  const std::string perplexity = has_text() ? fmt::format("  perplexity {:.2f}", std::exp(loss)) : "";
  print(fmt::format("step {}  test loss {:.4f}  accuracy {:.4f}{}\n", step, loss, accuracy, perplexity));
  Json line = {{"event", "evaluation"}, {"step", step}, {"test_loss", loss}, {"accuracy", accuracy}};
  if (has_text()) line["perplexity"] = std::exp(loss);
  write(std::move(line));
}

void Report::samples(std::int64_t step, const std::vector<SampledText>& samples) {
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const SampledText& sample = samples[i];
    const std::string number = samples.size() > 1 ? fmt::format(" {}", i + 1) : "";
    print(fmt::format("step {}  sample{}: {}\n", step, number, visible(sample)));
    if (!sample.finite) {
      spdlog::warn("Step {}: the sample of prompt {} ends because a logit is NaN or infinite", step, i + 1);
    }
    Json line = {{"event", "sample"},       {"step", step},
                 {"number", i + 1},         {"prompt", sample.prompt},
                 {"tokens", sample.tokens}, {"seconds", sample.seconds}};
    if (sample.text) line["text"] = *sample.text;
    write(std::move(line));
  }
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

void Report::exchange(const OuterExchange& exchange) {
  write({{"event", "exchange"},
         {"step", exchange.step},
         {"fragment", exchange.fragment},
         {"version", exchange.version},
         {"age", exchange.age},
         {"steps_in_flight", exchange.steps_in_flight},
         {"seconds", exchange.seconds},
         {"bytes_sent", exchange.bytes_sent},
         {"bytes_received", exchange.bytes_received},
         {"entries_skipped", exchange.skipped}});
}

void Report::interrupted(std::int64_t step, const std::string& signal, const std::string& checkpoint) {
  write({{"event", "interrupted"}, {"step", step}, {"signal", signal}, {"checkpoint", checkpoint}});
}

std::string Report::capital_unit() const {
  std::string unit = run().unit;
  if (!unit.empty()) unit[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0])));
  return unit;
}

void Report::summary(const RunResult& result) {
  if (result.calibration) warn_of_shared_cores(*result.calibration);
  print(fmt::format("\n{}", summary_text(info_, result)));
  Json line = {{"event", "summary"}};
  line.update(info_fields(info_));
  line[run().unit + "_per_second"] = units(result.rate.median);
  line[run().unit + "_per_second_min"] = units(result.rate.min);
  line[run().unit + "_per_second_max"] = units(result.rate.max);
  line["windows"] = result.rate.windows;
  add_disturbance(line, result.disturbed);
  add_calibration(line, result.calibration, run());
  const double flops = flops_per_device(info_, result.rate.median);
  line["mfu"] = info_.peak.flops > 0.0 ? Json(flops / info_.peak.flops) : Json(nullptr);
  line["mfu_causal"] = info_.peak.flops > 0.0 ? Json(flops * causal_share(run()) / info_.peak.flops) : Json(nullptr);
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
  line["windows_clock_known"] = result.clocks.known;
  line["windows_clock_fell"] = result.clocks.fell;
  if (run().mesh.stages > 1) line["waits_for_stages"] = result.waits_for_stages;
  if (run().mesh.tensor > 1) line["in_split_layers"] = result.in_split_layers;
  if (run().mesh.replicas > 1) line["waits_for_replicas"] = result.waits_for_replicas;
  line["parameter_hash"] = result.parameter_hash;
  if (const auto& totals = result.checkpoints) {
    line["checkpoints"] = totals->written;
    line["checkpoints_failed"] = totals->failed;
    line["checkpoint_bytes"] = totals->bytes;
    line["checkpoint_pause_seconds"] = totals->pause_seconds;
    line["checkpoint_pause_seconds_total"] = totals->pause_seconds_total;
    line["checkpoint_write_seconds"] = totals->write_seconds;
  }
  if (const auto& outer = result.outer) {
    line["exchanges"] = outer->exchanges;
    line["exchange_seconds"] = outer->seconds;
    line["exchange_bytes_sent"] = outer->bytes_sent;
    line["exchange_bytes_received"] = outer->bytes_received;
    line["exchange_entries_skipped"] = outer->skipped;
    line["outer_hash"] = outer->hash;
  }
  line["description"] = Json::parse(run().summary());
  line["topology"] = info_.topology;
  line["nccl"] = nccl_field(result.nccl);
  line["environment"] = info_.environment;
  line["configuration"] = info_.configuration;
  write(std::move(line));
}

}  // namespace ddptrain
