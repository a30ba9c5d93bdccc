#pragma once

#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "benchmarks/ddpbench/options.h"
#include "launch/choose_device.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain::bench {

using Json = nlohmann::ordered_json;

/// The file of --json: {"benchmark": NAME, ..., "results": [...]}. Made on every rank; only rank 0 touches the file.
class ResultFile {
 public:
  /// UsageError where `path` (empty: no file) cannot be written; what is there stays until write().
  ResultFile(const World& world, std::string path);
  void write(const Json& result) const;

 private:
  std::string path_;  // empty where there is nothing to write
};

/// 4 ranks on 1 node, for headings.
std::string ranks_on_nodes(const World& world);

/// Output of rank 0.
void print(const World& world, const std::string& text);

/// GPU number `local rank`, or the CPU.
std::unique_ptr<Device> make_device(const World& world, DeviceKind kind, Precision precision, int threads);
/// bf16 on GPUs, fp32 on CPUs, or what `name` says.
Precision choose_precision(const std::string& name, DeviceKind kind);
/// UsageError where `flag`, which is `given`, has no meaning on the CPU.
void require_gpu(DeviceKind kind, bool given, const char* flag);
/// UsageError where there is one rank only: `what` needs at least two.
void require_ranks(const World& world, const char* what);

/// Seconds that `work` takes until the device is done with what it queued: of this rank.
double seconds_of(const World& world, Device& device, const std::function<void()>& work);
double mean_over_ranks(const World& world, double value);

/// Uniform in [-bound, bound], the same for the same seed; f32 or bf16.
void fill_random(Device& device, const Tensor& values, double bound, std::uint32_t seed);

void run_p2p(const World& world, const CommonOptions& common, const P2pOptions& options);
void run_allreduce(const World& world, const CommonOptions& common, const AllreduceOptions& options);
void run_split(const World& world, const CommonOptions& common, const SplitOptions& options);
void run_overlap(const World& world, const CommonOptions& common, const OverlapOptions& options);
void run_gemm(const World& world, const CommonOptions& common, const GemmOptions& options);
void run_memory(const World& world, const CommonOptions& common, const MemoryOptions& options);
void run_step(const World& world, const CommonOptions& common, const StepOptions& options);

}  // namespace ddptrain::bench
