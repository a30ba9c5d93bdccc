#include "launch/app/tasks/tasks.h"

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <vector>

#include "launch/app/tasks/resume.h"
#include "models/registry.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/train/checkpoint/checkpoint.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// "8, 2 stages x 2 replicas x 2 parts, --zero 3, --virtual-ranks 4"
std::string mesh_text(const RunIdentity& run) {
  std::string text = std::to_string(run.mesh.ranks());
  if (!run.mesh.replica_is_one_rank()) {
    text += fmt::format(", {} x {} x {}", counted(run.mesh.stages, "stage"), counted(run.mesh.replicas, "replica"),
                        counted(run.mesh.tensor, "part"));
  }
  for (const char* name : {"--zero", "--virtual-ranks"}) {
    const auto flag = run.flags.find(name);
    std::string value = flag == run.flags.end() ? "0" : flag->second;
    std::erase(value, '"');
    if (value != "0") text += fmt::format(", {} {}", name, value);
  }
  return text;
}

/// "adamw, moments bf16, master off"
std::string optimizer_text(const RunIdentity& run) {
  std::vector<std::string> parts;
  for (const char* name : {"optimizer", "moments", "master"}) {
    const auto flag = run.flags.find(fmt::format("--{}", name));
    if (flag == run.flags.end()) continue;
    std::string value = flag->second;
    std::erase(value, '"');
    parts.push_back(parts.empty() ? value : fmt::format("{} {}", name, value));
  }
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string text_of(const fs::path& path) {
  const Manifest manifest = read_manifest(path);
  const RunIdentity& run = manifest.run;
  std::string text;
  const auto row = [&](const std::string& name, const std::string& value) {
    text += fmt::format("  {:<14}{}\n", name, value);
  };
  row("Step", fmt::format("{}  (epoch {}, step {} of {})", manifest.progress.step, manifest.progress.epochs.size() + 1,
                          manifest.progress.step -
                              static_cast<std::int64_t>(manifest.progress.epochs.size()) * run.steps_per_epoch,
                          run.steps_per_epoch));
  row("Written", manifest.written);
  std::string sizes;
  for (const auto& [name, size] : run.sizes) sizes += fmt::format(", {} {}", name, size);
  row("Model", fmt::format("{}{}, {}", run.model, sizes, run.precision));
  row("Optimizer", optimizer_text(run));
  row("Ranks", mesh_text(run));
  row("Samples",
      fmt::format("{} per step: batch {}, {}", run.samples_per_step, run.batch, counted(run.grad_accum, "micro-step")));
  row("Data", one_line(run.data));
  row("Seed", std::to_string(run.seed));
  row("Files", fmt::format("{}, {:.1f} MB", manifest.files.size(), 1e-6 * static_cast<double>(manifest.bytes())));
  for (const auto& [name, version] : run.versions) row(name, version);
  return text;
}

std::string inspected(const fs::path& path, const std::string& fault) {
  if (!fault.empty()) return fmt::format("{}\n  NOT USABLE: {}\n", one_line(path.string()), one_line(fault));
  return fmt::format("{}\n{}  complete and undamaged\n", one_line(path.string()), text_of(path));
}

}  // namespace

void inspect_checkpoints(const World& world, const std::string& path) {
  world.agree([&] {
    if (world.rank() != 0) return;
    std::vector<fs::path> paths;
    for (const auto& [step, checkpoint] : checkpoints_in(path)) paths.push_back(checkpoint);
    if (has_manifest(path)) paths = {path};
    if (paths.empty()) usage_error("--inspect {}: there is no checkpoint", path);
    std::size_t usable = 0, incomplete = 0;
    for (const fs::path& checkpoint : paths) {
      const std::string fault = fault_of(checkpoint);
      std::fputs(without_controls(inspected(checkpoint, fault)).c_str(), stdout);
      usable += fault.empty() ? 1 : 0;
      incomplete += has_manifest(checkpoint) ? 0 : 1;
    }
    std::fflush(stdout);
    if (usable > 0 && usable + incomplete == paths.size()) return;
    fail("--inspect {}: {} of {} cannot be used", path, paths.size() - usable, counted(paths.size(), "checkpoint"));
  });
}

void export_weights(const World& world, const CommandLine& command_line) {
  const Options& options = command_line.options;
  const std::string from = named_checkpoint(options);
  const std::optional<Checkpoint> checkpoint = find_checkpoint(world, from);
  world.agree([&] {
    if (!checkpoint) usage_error("--export {}: there is no checkpoint in {}", options.export_to, from);
    const RunIdentity& run = checkpoint->manifest.run;
    if (command_line.names_model) {
      require_model(run, options.model, from);
      command_line.workload->take_sizes(run.sizes);
      command_line.workload->check_given_sizes();
      check_sequence(command_line, run.sizes);
    }
    if (world.rank() != 0) return;
    std::map<std::string, HostTensor> weights;
    for (auto& [name, tensor] : CheckpointReader(*checkpoint).parameters()) {
      weights[name] = {tensor.first, std::move(tensor.second)};
    }
    const std::unique_ptr<Workload> workload = make_workload(run.model);
    workload->take_special_tokens(run.special_tokens);
    workload->export_weights(options.export_to, run.sizes, weights);
    const std::string line = fmt::format("{}: weights of {} after step {}", options.export_to,
                                         checkpoint->path.string(), checkpoint->manifest.progress.step);
    std::fputs((one_line(line) + "\n").c_str(), stdout);
  });
}

}  // namespace ddptrain
