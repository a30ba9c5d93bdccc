#include "launch/app/tasks/run_info.h"

#include "launch/app/plan/description.h"

namespace ddptrain {
namespace {

PeakRate peak_of(const Job& job, const RankDevice& rank) {
  if (job.options().peak_tflops > 0.0) return {1e12 * job.options().peak_tflops, "--peak-tflops"};
  return rank.device->peak();
}

}  // namespace

GradientPath gradient_path_of(const Trainer& trainer, const MeshShape& mesh) {
  GradientPath path = trainer.gradient_path();
  if (path.name == "none" && mesh.replicas == 1 && mesh.ranks() > 1) path.reason = "one replica";
  if (path.name == "plain" && path.reason.find("NCCL_") != std::string::npos) {
    path.reason += "; --symmetric off without it makes a fair comparison";
  }
  return path;
}

RunInfo run_info(const Job& job, const RankDevice& rank, const RunPlan& plan, const Trainer& trainer,
                 const Model* sampled) {
  RunInfo info;
  info.version = DDPTRAIN_VERSION;
  info.description = describe_run(plan, job.world.rank(), trainer.replica(), trainer.tree_bytes(), sampled);
  info.description.decides_parameters = job.command_line.decides_parameters;
  info.device_name = rank.device->name();
  info.nodes = job.world.nodes();
  info.local_world_size = job.world.local_size();
  info.shared_gpus = rank.gpus.shared;
  info.peak = peak_of(job, rank);
  info.zero = static_cast<int>(trainer.arena().zero());
  info.baseline = job.options().run.baseline;
  info.gradient_path = gradient_path_of(trainer, plan.mesh);
  info.epochs = plan.length->epochs;
  info.steps = plan.length->steps;
  info.shape = job.workload().sizes();
  info.startup = job.clock.phases();
  info.environment = job.early.nccl_settings;
  for (const Setting& setting : job.command_line.settings) info.configuration[setting.name] = setting.value;
  return info;
}

nlohmann::ordered_json task_line(const char* event, const RunPlan& plan, const Workload& workload, const Device& device,
                                 const Model& model) {
  nlohmann::ordered_json line = {{"event", event},
                                 {"version", DDPTRAIN_VERSION},
                                 {"model", plan.model},
                                 {"device", plan.device == DeviceKind::cuda ? "cuda" : "cpu"},
                                 {"device_name", device.name()},
                                 {"precision", name_of(plan.format)},
                                 {"world_size", plan.mesh.ranks()},
                                 {"parameters", element_count(model.parameters_of_all_stages())}};
  for (const auto& [name, size] : workload.sizes()) line[name] = size;
  return line;
}

}  // namespace ddptrain
