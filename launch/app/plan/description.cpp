#include "launch/app/plan/description.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "runtime/comm/meta_communicator.h"
#include "runtime/ops/meta_device.h"
#include "runtime/outer/codec.h"
#include "runtime/train/checkpoint/checkpoint.h"
#include "runtime/train/replica/updates.h"
#include "runtime/train/report/sends.h"
#include "runtime/train/step/gradient_norm.h"
#include "runtime/train/step/whole/matrix_directions.h"
#include "runtime/train/step/whole/trust_ratios.h"

namespace ddptrain {
namespace {

/// Of a process on a CPU, for code, the MPI library and its shared memory, threads and tables: alone, and one of
/// several ranks. Measured: see docs/reference/description.md.
constexpr double kAloneBytes = 0.05e9;
constexpr double kProcessBytes = 0.06e9;
/// What cuBLAS and the other libraries of a program with CUDA allocate when it starts, whether it uses a GPU or not.
constexpr double kCudaLibraryBytes = 0.16e9;

std::size_t sum_of(const std::vector<MemoryUse>& memory) {
  std::size_t bytes = 0;
  for (const MemoryUse& use : memory) bytes += use.bytes;
  return bytes;
}

double process_bytes(const MeshShape& mesh) {
  return (mesh.ranks() == 1 ? kAloneBytes : kProcessBytes) + (built_with_cuda() ? kCudaLibraryBytes : 0.0);
}

/// Of a rank with a GPU, for CUDA's context, kernels, workspaces but attention's, graphs and NCCL's buffers. `units`:
/// of the rank. Fitted to measurements: see docs/reference/description.md.
double library_bytes(const MeshShape& mesh, std::size_t units) {
  double bytes = 0.55e9 + 0.006e9 * static_cast<double>(units);
  if (mesh.ranks() > 1) bytes += 0.49e9;
  if (mesh.replicas > 1) bytes += 0.24e9;
  if (mesh.tensor > 1) bytes += 0.51e9;
  if (mesh.stages > 1) bytes += 1.17e9;
  return bytes;
}

/// The same if ranks share a GPU under MPS. They have one context together, and NCCL copies inside the GPU. Without MPS
/// every rank has a context of its own, and this is too little.
double shared_library_bytes(const MeshShape& mesh, std::size_t units, Zero zero) {
  double bytes = 0.58e9 + 0.0195e9 * static_cast<double>(units);
  if (zero != Zero::nothing && mesh.replicas > 1) bytes += 0.18e9;
  if (mesh.tensor > 1) bytes += 0.34e9;
  if (mesh.stages > 1) bytes += 0.42e9;
  return bytes;
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
std::size_t message_bytes(const RunPlan& plan, const Replica& replica) {
  const ParameterArena& arena = replica.arena();
  const int replicas = plan.mesh.replicas;
  std::size_t bytes = 0;
  for (const ParameterSpec& spec : arena.specs()) {
    if (spec.split) bytes = std::max(bytes, static_cast<std::size_t>(spec.size()) * sizeof(float));
  }
  const bool exchanges = replica.ranks().emulated && (replicas > 2 || arena.zero() >= Zero::gradients);
  if (replicas == 1 || !plan.reduces_gradients() || exchanges) return bytes;
  std::size_t bucket_bytes = 0;
  for (const Bucket& bucket : arena.plan().buckets) {
    bucket_bytes = std::max(bucket_bytes, static_cast<std::size_t>(bucket.size) * size_of(arena.gradient_type()));
  }
  const std::size_t result = arena.zero() == Zero::nothing ? 0 : bucket_bytes / static_cast<std::size_t>(replicas);
  return std::max(bytes, bucket_bytes + result);
}

/// The outer state of a group, in the host memory of its rank 0, and what an exchange takes: arrays of values of a
/// fragment, its own difference on the way, and the differences of groups, as they came and as they wait for their
/// round. Without rounds, one of another group is counted.
std::size_t outer_bytes(const OuterOptions& outer, std::int64_t parameters) {
  const auto count = static_cast<std::size_t>(parameters);
  const std::size_t arrays = outer.rule.optimizer == OuterOptimizer::nesterov ? 4 : 3;
  const std::size_t differences = encoded_bytes(outer.codec, parameters);
  const auto fragments = static_cast<std::size_t>(outer.fragments);
  const bool rounds = outer.rule.groups > 0;
  const std::size_t exchanged = 2 + 2 * (rounds ? static_cast<std::size_t>(outer.rule.groups) : 1);
  return sizeof(float) * count * arrays + differences +
         ((rounds ? 5 : 4) * sizeof(float) * count + exchanged * differences) / fragments;
}

/// Copies of weights and state. They lie in the memory of the host whatever the device is.
std::vector<MemoryUse> copies(const RunPlan& plan, int rank, const Replica& replica) {
  std::vector<MemoryUse> memory;
  if (plan.writes_checkpoints) {
    memory.push_back({"checkpoint", checkpoint_bytes(replica.arena(), plan.mesh, rank)});
  }
  if (plan.saves_model && rank == 0) {  // two copies in fp32
    memory.push_back(
        {"saved model", 8 * static_cast<std::size_t>(element_count(replica.model().parameters_of_all_stages()))});
  }
  if (!plan.outer.address.empty() && rank == 0) {
    const std::int64_t parameters = element_count(replica.model().parameters_of_all_stages());
    memory.push_back({"outer state", outer_bytes(plan.outer, parameters)});
  }
  return memory;
}

/// Memory of a rank on a CPU besides model and state.
std::vector<MemoryUse> cpu_memory(const RunPlan& plan, int rank, const Replica& replica) {
  std::vector<MemoryUse> memory = {{"messages", message_bytes(plan, replica)}};
  for (const MemoryUse& use : copies(plan, rank, replica)) memory.push_back(use);
  memory.push_back({"libraries", static_cast<std::size_t>(process_bytes(plan.mesh))});
  return memory;
}

/// The same for a rank with a GPU. The host's memory for libraries and MPI is not known.
std::vector<MemoryUse> gpu_memory(const RunPlan& plan, int rank, const Replica& replica) {
  const std::size_t units = replica.arena().units().size();
  const double bytes =
      plan.shares_gpus ? shared_library_bytes(plan.mesh, units, plan.trainer.zero) : library_bytes(plan.mesh, units);
  std::vector<MemoryUse> memory = {{"libraries", static_cast<std::size_t>(bytes)}};
  for (const MemoryUse& use : copies(plan, rank, replica)) memory.push_back({use.purpose, use.bytes, true});
  return memory;
}

/// `in_flight`: passes whose activations are kept at the same time.
std::vector<MemoryUse> memory_of(const RunPlan& plan, int rank, const Replica& replica, std::int64_t in_flight,
                                 std::size_t tree_bytes, const Model* sampled) {
  std::vector<MemoryUse> memory = replica.arena().memory();
  for (const MemoryUse& use : replica.model().memory()) memory.push_back(use);
  for (MemoryUse& use : memory) {
    if (use.purpose == "activations") use.bytes *= static_cast<std::size_t>(in_flight);
  }
  if (tree_bytes > 0) memory.push_back({"tree", tree_bytes});
  if (sampled != nullptr) memory.push_back({"samples", sum_of(sampled->memory())});
  memory.push_back({"norm", GradientNorm::bytes(replica.arena())});
  if (rule_of(plan.trainer.optimizer.kind).matrices) {
    memory.push_back({"directions", MatrixDirections::bytes(replica.arena())});
  }
  if (rule_of(plan.trainer.optimizer.kind).norms) {
    memory.push_back({"trust ratios", TrustRatios::bytes(replica.arena())});
  }
  const bool cuda = plan.device == DeviceKind::cuda;
  for (const MemoryUse& use : cuda ? gpu_memory(plan, rank, replica) : cpu_memory(plan, rank, replica)) {
    memory.push_back(use);
  }
  return memory;
}

/// The buckets as they are sent.
void describe_gradients(Description& description, const RunPlan& plan, const Replica& replica) {
  const DType kept = replica.arena().gradient_type();
  description.gradient_type = kept == DType::f32 ? "fp32" : name_of(kept);
  description.buckets = work_of_buckets(replica.model(), replica.arena());
  if (!plan.communicator.bf16_between_hosts) return;
  description.gradient_type = "bf16";
  for (BucketWork& bucket : description.buckets) {
    bucket.bytes =
        bucket.bytes / static_cast<std::int64_t>(size_of(kept)) * static_cast<std::int64_t>(size_of(DType::bf16));
  }
}

}  // namespace

Description describe_run(const RunPlan& plan, int rank, const Replica& replica, std::size_t tree_bytes,
                         const Model* sampled) {
  const Model& model = replica.model();
  const MeshShape& mesh = plan.mesh;
  const StepOrder order =
      step_order(mesh.stages, mesh.stage_of(rank), plan.passes_of_step(rank), replica.arena().units().size());
  const std::int64_t passes = std::ssize(order.passes);
  Description description;
  description.model = plan.model;
  description.device = plan.device == DeviceKind::cuda ? "cuda" : "cpu";
  description.precision = name_of(plan.format);
  description.mesh = mesh;
  description.passes = passes;
  description.batch_per_rank = plan.trainer.batch;
  description.grad_accum = plan.trainer.grad_accum;
  description.virtual_ranks = plan.trainer.virtual_ranks;
  description.parameters = element_count(model.parameters_of_all_stages());
  description.unit = model.sample_unit();
  description.units_per_sample = model.predictions_per_sample();
  description.flop_per_sample = model.flops_per_sample();
  description.layers = model.work().layers;
  if (plan.sums_with_mpi) description.hierarchical = plan.hierarchical ? "on" : "off";
  describe_gradients(description, plan, replica);
  description.memory =
      memory_of(plan, rank, replica, passes_in_flight(mesh.stages, mesh.stage_of(rank), passes), tree_bytes, sampled);
  description.sends =
      sends_of(model, replica.arena(), mesh, rank, order, plan.reduces_gradients() ? description.gradient_bytes() : 0,
               rule_of(plan.trainer.optimizer.kind).matrices);
  return description;
}

Description describe_on_meta(const RunPlan& plan, Workload& workload, int rank) {
  const std::unique_ptr<Device> meta = make_meta_device(plan.compute, plan.device);
  Called none;
  const std::unique_ptr<Communicator> communicator =
      make_meta_communicator(plan.mesh.replica_of(rank), plan.mesh.replicas, *meta, none);
  TrainerOptions options = plan.trainer;
  options.fused_sum = false;  // the meta device has no kernels
  Replica replica(options, ReplicaUse::training, workload.make_model(*meta, options.batch), *meta, *communicator);
  const Updates updates(options, replica);
  std::unique_ptr<TextModel> sampled;
  if (plan.mesh.replica_of(rank) == 0) sampled = workload.make_text_model(*meta);
  return describe_run(plan, rank, replica, updates.communication.tree_bytes(), sampled.get());
}

}  // namespace ddptrain
