#include "launch/app/plan/resolve.h"

#include <cmath>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

Precision precision_of(NumberFormat format) {
  switch (format) {
    case NumberFormat::fp32:
      return Precision::fp32;
    case NumberFormat::tf32:
      return Precision::tf32;
    case NumberFormat::bf16:
    case NumberFormat::fp8:
      return Precision::bf16;
  }
  return Precision::fp32;
}

}  // namespace

NumberFormat chosen_format(const Options& options, DeviceKind device) {
  if (options.precision) return *options.precision;
  return default_precision(device) == Precision::bf16 ? NumberFormat::bf16 : NumberFormat::fp32;
}

DeviceOptions device_options(const Options& options, DeviceKind device, int ranks_per_gpu) {
  const NumberFormat format = chosen_format(options, device);
  DeviceOptions result = options.compute;
  result.precision = precision_of(format);
  result.fp8 = format == NumberFormat::fp8;
  result.comm_ctas = options.comm_ctas;
  result.ranks = ranks_per_gpu;
  return result;
}

bool sums_with_mpi(const Options& options, DeviceKind device) {
  return device == DeviceKind::cpu || options.comm == CommLibrary::mpi;
}

bool sends_bf16_between_hosts(const Options& options, DeviceKind device) {
  const bool wider = device_options(options, device).precision != Precision::bf16;
  return sums_with_mpi(options, device) && options.trainer.gradient_type == DType::bf16 && wider;
}

void check_precision(const Options& options, const Workload& workload, DeviceKind device) {
  if (device == DeviceKind::cpu && options.precision.value_or(NumberFormat::fp32) != NumberFormat::fp32) {
    usage_error(
        "--precision {}: the CPU computes in fp32. Use --precision fp32, or --device cuda on a machine with a GPU.",
        name_of(*options.precision));
  }
  const NumberFormat format = chosen_format(options, device);
  if (!options.trainer.has_masters && device == DeviceKind::cuda && precision_of(format) != Precision::bf16) {
    usage_error("--master off: with --precision {}, weights are fp32 and there are no others. Use --precision bf16.",
                name_of(format));
  }
  const Precision precision = precision_of(format);
  const bool bf16 = precision == Precision::bf16;
  const std::optional<DType> gradients = options.trainer.gradient_type;
  if (gradients == DType::bf16 && !bf16 && !sends_bf16_between_hosts(options, device)) {
    usage_error(
        "--comm-dtype bf16: gradients are {}, and NCCL sends them as they are. Use --comm-dtype auto, --precision bf16 "
        "or --comm mpi.",
        name_of(precision));
  }
  if (sends_bf16_between_hosts(options, device) &&
      (options.trainer.zero > Zero::nothing || options.trainer.virtual_ranks > 0)) {
    usage_error("--comm-dtype bf16 with {}: {} gradients are sent as they are. Leave one of them out.",
                options.trainer.zero > Zero::nothing ? fmt::format("--zero {}", static_cast<int>(options.trainer.zero))
                                                     : "--virtual-ranks",
                name_of(precision));
  }
  if (gradients == DType::f32 && bf16 && !workload.supports_f32_gradients()) {
    usage_error("--comm-dtype fp32: model {} computes bf16 gradients. Use --comm-dtype auto, or --precision fp32.",
                options.model);
  }
}

void check_offload(const Options& options, DeviceKind device) {
  if (!options.trainer.state_on_host || device == DeviceKind::cuda) return;
  usage_error(
      "--offload optimizer: a CPU computes in the memory of the host. Leave --offload out, or use --device cuda on a "
      "machine with a GPU.");
}

float scaled_learning_rate(const Options& options, int replicas) {
  const TrainerOptions& trainer = options.trainer;
  const auto ranks = static_cast<double>(dealt_ranks(trainer, replicas));
  const double samples = static_cast<double>(trainer.batch) * static_cast<double>(trainer.grad_accum) * ranks;
  const double ratio = samples / static_cast<double>(options.lr_base_batch);
  const bool linear = options.lr_scaling == LrScaling::linear;
  const double factor = options.lr_scaling == LrScaling::none ? 1.0 : linear ? ratio : std::sqrt(ratio);
  return static_cast<float>(trainer.optimizer.schedule.peak * factor);
}

TrainerOptions trainer_options(const Options& options, int replicas, std::int64_t total_steps) {
  TrainerOptions result = options.trainer;
  result.optimizer.schedule.peak = scaled_learning_rate(options, replicas);
  result.optimizer.schedule.total_steps = static_cast<std::uint64_t>(total_steps);
  result.bucket_bytes = static_cast<std::size_t>(options.bucket_mb * 1048576.0);
  result.last_bucket_bytes = static_cast<std::size_t>(options.last_bucket_kb * 1024.0);
  return result;
}

}  // namespace ddptrain
