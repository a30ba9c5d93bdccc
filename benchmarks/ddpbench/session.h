#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "benchmarks/ddpbench/options.h"
#include "launch/app/job/choose_device.h"
#include "runtime/comm/communicator.h"
#include "runtime/comm/world.h"
#include "runtime/core/files/descriptor.h"
#include "runtime/device/device.h"
#include "runtime/device/sensors.h"
#include "runtime/train/measure/core_share.h"

namespace ddptrain::bench {

using Json = nlohmann::ordered_json;

/// The file of --json: {"benchmark": NAME, ..., "results": [...]}. Made on every rank; only rank 0 touches the file.
class ResultFile {
 public:
  /// UsageError if the file (empty: none) is not writable, or would be overwritten: see check_outputs(). An existing
  /// file stays until write().
  ResultFile(const World& world, const CommonOptions& common);
  void write(const Json& result) const;

 private:
  std::string path_;  // empty: nothing to write
  Descriptor pipe_;   // if it is one: see require_writable()
};

/// "4 ranks on 1 node", for headings.
std::string ranks_on_nodes(const World& world);

/// Output of rank 0.
void print(const World& world, const std::string& text);

/// The ranks that share a GPU. If it is more than one, a printed line says that rates are not rates of links, and the
/// result is UsageError unless it is `allowed`.
int ranks_per_gpu(const World& world, bool allowed);
/// This rank's GPU, or the CPU.
std::unique_ptr<Device> make_device(const World& world, const CommonOptions& common, DeviceKind kind,
                                    Precision precision);
/// `name`; for auto, bf16 on GPUs and fp32 on CPUs.
Precision choose_precision(const std::string& name, DeviceKind kind);
/// UsageError if `flag` is `given` and has no meaning on the CPU.
void require_gpu(DeviceKind kind, bool given, const char* flag);
/// UsageError if there is only one rank: `what` needs at least two.
void require_ranks(const World& world, const char* what);

/// What disturbs a benchmark while this object lives. It reads the sensors of this rank's GPU, if the rank is the first
/// of those that share the GPU; on CPUs it counts the cores that other programs take.
class SensorLog {
 public:
  SensorLog(const World& world, const Device& device);  ///< Collective.
  /// Prints the readings of the GPUs of all ranks, or why times of CPUs are not to be trusted. Adds them to `result`:
  /// the fields `gpus` and `disturbed` of metrics files. Collective.
  void tell(Json& result);

 private:
  const World& world_;
  std::optional<SensorSampler> sampler_;
  std::optional<CoreShare> cores_;  ///< On CPUs.
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Seconds on this rank from the start of `work` until the device has finished what `work` queued.
double seconds_of(const World& world, Device& device, const std::function<void()>& work);
/// Name and version of the communicator's library; empty on one rank.
std::string library_version(const Communicator& communicator);
double mean_over_ranks(const World& world, double value);

/// The rounds of a measurement: `fewest`, and more until `min_seconds` have passed on some rank.
class Rounds {
 public:
  Rounds(const World& world, int fewest, double min_seconds)
      : world_(world), fewest_(fewest), min_seconds_(min_seconds) {}
  bool next();  ///< Whether there is another one. Collective.
  int done() const { return done_; }

 private:
  const World& world_;
  int fewest_;
  double min_seconds_;
  int done_ = -1;  ///< -1: next() has not been called.
  std::chrono::steady_clock::time_point start_;
};

void run_p2p(const World& world, const CommonOptions& common, const P2pOptions& options);
void run_allreduce(const World& world, const CommonOptions& common, const AllreduceOptions& options);
void run_split(const World& world, const CommonOptions& common, const SplitOptions& options);
void run_overlap(const World& world, const CommonOptions& common, const OverlapOptions& options);
void run_gemm(const World& world, const CommonOptions& common, const GemmOptions& options);
void run_memory(const World& world, const CommonOptions& common, const MemoryOptions& options);
/// The exit code: 1 on rank 0 if hosts differ or something is slow.
int run_doctor(const World& world, const CommonOptions& common, const DoctorOptions& options);
void run_step(const World& world, const CommonOptions& common, const StepOptions& options);

}  // namespace ddptrain::bench
