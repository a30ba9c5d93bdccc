#include "benchmarks/ddpbench/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <utility>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/outputs.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/text.h"
#include "runtime/train/measure/gather_sensors.h"
#include "runtime/train/report/sensor_fields.h"

namespace ddptrain::bench {
namespace {

/// How the file of each benchmark begins, without white space.
std::vector<std::string> beginnings() {
  return {R"({"benchmark":"allreduce","op":)",    R"({"benchmark":"doctor","ranks":)",
          R"({"benchmark":"gemm","device":)",     R"({"benchmark":"memory","device":)",
          R"({"benchmark":"overlap","library":)", R"({"benchmark":"p2p","gpus":)",
          R"({"benchmark":"split","library":)",   R"({"benchmark":"step","model":)"};
}

/// In one line: the range of the clocks, the highest power and temperature, and why clocks were held down.
std::string sensor_text(const std::vector<SensorWindow>& of_ranks) {
  SensorWindow all;
  for (const SensorWindow& window : of_ranks) all.add(window);
  std::string text = fmt::format("{:.0f} MHz on average ({:.0f} to {:.0f}), {:.0f} W at most, {:.0f} C at most",
                                 all.sm_mhz.mean(), all.sm_mhz.min, all.sm_mhz.max, all.watts.max, all.celsius.max);
  for (std::size_t i = 0; i < all.throttled.size(); ++i) {
    const double share = static_cast<double>(all.throttled[i]) / static_cast<double>(all.readings);
    if (share > 0.0) text += fmt::format("; {} {:.0f}% of the time", kThrottleReasons[i], 100.0 * share);
  }
  return text;
}

}  // namespace

ResultFile::ResultFile(const World& world, const CommonOptions& common) {
  world.agree([&] {
    if (world.rank() != 0 || common.json.empty()) return;
    path_ = common.json;
    check_outputs({{"--json", path_, beginnings()}}, {}, common.force);
    pipe_ = require_writable("--json", path_);
  });
}

void ResultFile::write(const Json& result) const {
  if (path_.empty()) return;
  write_file(path_, result.dump(2) + '\n');
}

std::string ranks_on_nodes(const World& world) {
  return counted(world.size(), "rank") + " on " + counted(world.nodes(), "node");
}

void print(const World& world, const std::string& text) {
  if (world.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

int ranks_per_gpu(const World& world, bool allowed) {
  const auto [gpus, ranks, is_first] = use_gpus(world, cuda_pci_bus_id(own_gpu(world)), allowed);
  if (gpus == 0) return 1;
  print(world,
        fmt::format("# {} ranks share {} GPU{}: rates are of the GPU's memory and cores, and tell nothing of links "
                    "between GPUs\n",
                    world.size(), gpus, gpus == 1 ? "" : "s"));
  return ranks;
}

std::unique_ptr<Device> make_device(const World& world, const CommonOptions& common, DeviceKind kind,
                                    Precision precision) {
  std::unique_ptr<Device> device;
  DeviceOptions options;
  options.precision = precision;
  options.threads = common.threads;
  if (kind == DeviceKind::cuda) options.ranks = ranks_per_gpu(world, common.share_gpu);
  world.agree([&] {
    device = kind == DeviceKind::cuda ? make_cuda_device(options, own_gpu(world)) : make_cpu_device(options);
  });
  return device;
}

Precision choose_precision(const std::string& name, DeviceKind kind) {
  if (name == "fp32") return Precision::fp32;
  if (name == "tf32") return Precision::tf32;
  if (name == "bf16") return Precision::bf16;
  return default_precision(kind);
}

void require_gpu(DeviceKind kind, bool given, const char* flag) {
  if (given && kind == DeviceKind::cpu) usage_error("{}: it is for GPUs; leave it out", flag);
}

void require_ranks(const World& world, const char* what) {
  if (world.size() > 1) return;
  usage_error("{} needs at least 2 ranks: start it with mpirun -np 2 --bind-to none ddpbench ...", what);
}

SensorLog::SensorLog(const World& world, const Device& device) : world_(world) {
  if (device.kind() == DeviceKind::cpu) {
    cores_.emplace(world, device.options().threads);
    return;
  }
  const std::string gpu = cuda_pci_bus_id(own_gpu(world));
  if (!use_gpus(world, gpu, /*share=*/true).is_first) return;
  if (ReadSensors read = gpu_sensors(gpu)) sampler_.emplace(std::move(read));
}

void SensorLog::tell(Json& result) {
  const auto of_ranks = gather_sensors(world_, sampler_ ? sampler_->take() : SensorWindow{});
  if (!of_ranks.empty()) print(world_, fmt::format("# GPUs: {}\n", sensor_text(of_ranks)));
  result["gpus"] = sensor_fields(of_ranks);
  const std::string disturbed = cores_ ? cores_->disturbance().why : "";
  result["disturbed"] = disturbed;
  if (!disturbed.empty()) print(world_, fmt::format("# Disturbed: {}: do not trust these numbers\n", disturbed));
}

std::string library_version(const Communicator& communicator) {
  if (communicator.library() == "NCCL") return "NCCL " + nccl_version();
  return communicator.library().empty() ? "" : mpi_version();
}

double seconds_of(const World& world, Device& device, const std::function<void()>& work) {
  device.synchronize();
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  device.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double mean_over_ranks(const World& world, double value) { return world.sum(value) / world.size(); }

bool Rounds::next() {
  if (++done_ == 0) start_ = std::chrono::steady_clock::now();
  if (done_ < fewest_) return true;
  if (min_seconds_ == 0.0) return false;
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return world_.max(passed) < min_seconds_;
}

}  // namespace ddptrain::bench
