#include "launch/app/tasks/describe.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <utility>
#include <vector>

#include "launch/app/tasks/memory_advice.h"
#include "launch/app/tasks/tasks.h"
#include "runtime/comm/meta_communicator.h"
#include "runtime/ops/meta_device.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/report/sends.h"
#include "runtime/train/step/gradient_norm.h"

namespace ddptrain {

namespace {

/// The one that --device asks for, whether it is there or not; auto: GPUs where all ranks have some.
DeviceKind device_to_describe(const World& world, const std::string& device) {
  if (device == "auto") return world.min(cuda_device_count()) > 0 ? DeviceKind::cuda : DeviceKind::cpu;
  return device == "cuda" ? DeviceKind::cuda : DeviceKind::cpu;
}

std::int64_t passes_of(const Options& options, const MeshShape& mesh, int rank) {
  const VirtualRanks ranks = virtual_ranks(options.trainer, mesh.replica_of(rank), mesh.replicas);
  return ranks.count * options.trainer.grad_accum;
}

/// Of a process on a CPU, for code, the MPI library and its shared memory, threads and tables: alone, and one of
/// several ranks. Measured: see docs/reference/description.md.
constexpr double kAloneBytes = 0.05e9;
constexpr double kProcessBytes = 0.06e9;
/// What cuBLAS and the other libraries of a program with CUDA allocate when it starts, whether it uses a GPU or not.
constexpr double kCudaLibraryBytes = 0.16e9;

double process_bytes(const MeshShape& mesh) {
  return (mesh.ranks() == 1 ? kAloneBytes : kProcessBytes) + (built_with_cuda() ? kCudaLibraryBytes : 0.0);
}

/// Of a rank with a GPU, for CUDA's context, kernels, workspaces, graphs and NCCL's buffers. Fitted to measurements:
/// see docs/reference/description.md.
double library_bytes(const MeshShape& mesh) {
  double bytes = 1.24e9;
  if (mesh.replicas > 1) bytes += 0.30e9;
  if (mesh.tensor > 1) bytes += 0.80e9;
  if (mesh.stages > 1) bytes += 1.10e9;
  return bytes;
}

/// The same if ranks share a GPU under MPS. They have one context together, and NCCL copies inside the GPU. What is
/// left grows with the units that a rank runs. Without MPS every rank has a context of its own, and this is too little.
double shared_library_bytes(const MeshShape& mesh, std::size_t units, Zero zero) {
  const double graphs = 0.01e9 * static_cast<double>(units);
  double bytes = 0.95e9 + graphs;
  if (zero != Zero::nothing && mesh.replicas > 1) bytes += 0.18e9;
  if (mesh.tensor > 1) bytes += 0.07e9 + graphs;
  if (mesh.stages > 1) bytes += 0.30e9;
  return bytes;
}

/// Synthetic data can have as many samples as a planned job needs.
bool has_synthetic_data(const CommandLine& command_line) {
  const auto is_data = [](const Setting& setting) { return setting.name == "data"; };
  const auto data = std::find_if(command_line.settings.begin(), command_line.settings.end(), is_data);
  if (data == command_line.settings.end()) return false;
  return data->value == "\"synthetic\"" || data->value.starts_with("\"synthetic:");
}

/// The image of a checkpoint, in host memory: this rank's share of the state.
std::size_t checkpoint_bytes(const ParameterArena& arena, const MeshShape& mesh, int rank) {
  std::vector<StateArray> arrays = arena.state();
  std::erase_if(arrays, [](const StateArray& array) { return array.is_copy; });
  std::size_t bytes = 0;
  for (const StateArray& array : arrays_to_write(std::move(arrays), mesh.replica_of(rank), mesh.replicas)) {
    for (const StateArray::Piece& piece : array.pieces) bytes += piece.values.bytes();
  }
  return bytes;
}

/// What Open MPI allocates for collectives in progress, by measurement: an all-reduce takes the size of its bucket, a
/// reduce-scatter that of its result, too. Exchanges between virtual ranks take none. Ranks that split layers collect
/// the largest part of a layer for the hash. Ranks of several hosts are not counted: --dry-run does not know them.
std::size_t message_bytes(const Options& options, const MeshShape& mesh, const ParameterArena& arena) {
  std::size_t bytes = 0;
  for (const ParameterSpec& spec : arena.specs()) {
    if (spec.split) bytes = std::max(bytes, static_cast<std::size_t>(spec.size()) * sizeof(float));
  }
  const bool exchanges = options.trainer.virtual_ranks > 0 && (mesh.replicas > 2 || arena.zero() >= Zero::gradients);
  if (mesh.replicas == 1 || options.trainer.overlap == OverlapMode::none || exchanges) return bytes;
  std::size_t bucket_bytes = 0;
  for (const Bucket& bucket : arena.plan().buckets) {
    bucket_bytes = std::max(bucket_bytes, static_cast<std::size_t>(bucket.size) * size_of(arena.gradient_type()));
  }
  const std::size_t result = arena.zero() == Zero::nothing ? 0 : bucket_bytes / static_cast<std::size_t>(mesh.replicas);
  return std::max(bytes, bucket_bytes + result);
}

/// What a process on a CPU keeps besides model and state. On a GPU these lie in the memory of the host.
std::vector<MemoryUse> host_memory(const Options& options, const Workload& workload, const MeshShape& mesh, int rank,
                                   const Model& model, const ParameterArena& arena) {
  std::vector<MemoryUse> memory = {{"messages", message_bytes(options, mesh, arena)}};
  if (!options.checkpoint.folder.empty()) memory.push_back({"checkpoint", checkpoint_bytes(arena, mesh, rank)});
  if (workload.saves()) {  // two copies in fp32
    memory.push_back({"saved model", 8 * static_cast<std::size_t>(element_count(model.parameters()))});
  }
  memory.push_back({"libraries", static_cast<std::size_t>(process_bytes(mesh))});
  return memory;
}

/// Of the stage that keeps most, with the most that any stage sends. After Workload::load(); the workload is opened
/// again for each stage.
Description describe_stages(const Options& options, Workload& workload, const MeshShape& mesh, DeviceKind kind) {
  std::vector<Description> stages;
  std::vector<std::vector<Sent>> sends;
  for (int stage = 0; stage < mesh.stages; ++stage) {
    const int rank = stage * mesh.replicas * mesh.tensor;
    if (mesh.stages > 1) workload.open({.rank = rank, .seed = options.trainer.seed, .mesh = mesh});
    stages.push_back(describe_on_meta(options, workload, mesh, rank, kind));
    sends.push_back(stages.back().sends);
  }
  const auto keeps_less = [](const Description& a, const Description& b) { return bytes_of(a) < bytes_of(b); };
  Description most = *std::max_element(stages.begin(), stages.end(), keeps_less);
  most.sends = most_of(sends);
  return most;
}

}  // namespace

std::size_t bytes_of(const Description& description) {
  std::size_t bytes = 0;
  for (const MemoryUse& use : description.memory) bytes += use.bytes;
  return bytes;
}

Description describe_run(const Options& options, const Workload& workload, const MeshShape& mesh, int rank,
                         DeviceKind device, const Model& model, const ParameterArena& arena, std::size_t tree_bytes) {
  const DeviceOptions compute = device_options(options, device);
  Description description;
  description.parameters = element_count(model.parameters_of_all_stages());
  description.unit = model.unit();
  description.units_per_sample = model.predictions_per_sample();
  description.flop_per_sample = model.flops_per_sample();
  description.layers = model.work().layers;
  description.gradient_type = arena.gradient_type() == DType::f32 ? "fp32" : name_of(arena.gradient_type());
  description.buckets = work_of_buckets(model, arena);
  description.memory = arena.memory();
  for (const MemoryUse& use : model.memory()) description.memory.push_back(use);
  description.passes = passes_of(options, mesh, rank);
  const std::int64_t in_flight = passes_in_flight(mesh.stages, mesh.stage_of(rank), description.passes);
  for (MemoryUse& use : description.memory) {
    if (use.purpose == "activations") use.bytes *= static_cast<std::size_t>(in_flight);
  }
  if (tree_bytes > 0) description.memory.push_back({"tree", tree_bytes});
  description.memory.push_back({"norm", GradientNorm::bytes(arena)});
  if (device == DeviceKind::cuda) {
    const double bytes = options.share_gpu ? shared_library_bytes(mesh, model.units().size(), options.trainer.zero)
                                           : library_bytes(mesh);
    description.memory.push_back({"libraries", static_cast<std::size_t>(bytes)});
  } else {
    for (const MemoryUse& use : host_memory(options, workload, mesh, rank, model, arena)) {
      description.memory.push_back(use);
    }
  }
  if (sends_bf16_between_hosts(options, device)) {
    const auto kept = static_cast<std::int64_t>(size_of(arena.gradient_type()));
    description.gradient_type = "bf16";
    for (BucketWork& bucket : description.buckets) {
      bucket.bytes = bucket.bytes / kept * static_cast<std::int64_t>(size_of(DType::bf16));
    }
  }
  const bool reduces = options.trainer.overlap != OverlapMode::none;
  description.sends =
      sends_of(model, arena, mesh, rank, description.passes, reduces ? description.gradient_bytes() : 0);
  if (sums_with_mpi(options, device)) description.hierarchical = options.hierarchical ? "on" : "off";
  description.model = options.model;
  description.device = device == DeviceKind::cuda ? "cuda" : "cpu";
  description.precision = compute.fp8 ? "fp8" : name_of(compute.precision);
  description.mesh = mesh;
  description.batch_per_rank = options.trainer.batch;
  description.grad_accum = options.trainer.grad_accum;
  description.virtual_ranks = options.trainer.virtual_ranks;
  return description;
}

Description describe_on_meta(const Options& options, Workload& workload, const MeshShape& mesh, int rank,
                             DeviceKind device) {
  const std::unique_ptr<Device> meta = make_meta_device(device_options(options, device), device);
  Called none;
  const std::unique_ptr<Communicator> communicator =
      make_meta_communicator(mesh.replica_of(rank), mesh.replicas, *meta, none);
  const std::unique_ptr<Model> model = workload.make_model(*meta, options.trainer.batch);
  TrainerOptions trainer = trainer_options(options, mesh.replicas, 1);
  const ParameterArena arena(model->parameters(), arena_options(trainer, *model), *meta, *communicator);
  trainer.fused_sum = false;  // the meta device has no kernels
  NonFinite nonfinite;
  Optimizer optimizer(trainer.optimizer, trainer.clip_norm, arena, &nonfinite, trainer.on_nonfinite);
  const StepCommunication communication = make_step_communication(trainer, arena, optimizer);
  return describe_run(options, workload, mesh, rank, device, *model, arena, communication.tree_bytes());
}

void print_description(const World& world, CommandLine command_line) {
  Options& options = command_line.options;
  Workload& workload = *command_line.workload;
  const DeviceKind kind = device_to_describe(world, options.device);
  MeshShape mesh;
  world.agree([&] {
    mesh = mesh_of(options.ranks > 0 ? options.ranks : world.size(), options.stages, options.tensor);
    check_precision(options, workload, kind);
    workload.open({.rank = world.rank() % mesh.ranks(), .seed = options.trainer.seed, .mesh = mesh});
    workload.load();
    if (options.auto_batch && (kind == DeviceKind::cuda || options.ranks > 0)) {
      usage_error("--batch auto: {}. Give a number.", options.ranks > 0
                                                          ? "the memory of other ranks is not known"
                                                          : "--describe and --dry-run touch no GPU to see its memory");
    }
  });
  if (options.auto_batch) options.trainer.batch = largest_batch_that_fits(world, kind, 1, options, workload);
  const bool needs_data =
      options.ranks == 0 || command_line.task != Task::describe || !has_synthetic_data(command_line);
  world.agree([&] {
    if (needs_data) make_sampler(options.trainer, workload.data(), 0, mesh.replicas);
    if (world.rank() != 0) return;
    Description description = describe_stages(options, workload, mesh, kind);
    description.decides_parameters = std::move(command_line.decides_parameters);
    const bool table = command_line.task == Task::dry_run;
    std::fputs((table ? description.table() : description.json()).c_str(), stdout);
  });
}

}  // namespace ddptrain
