#include "launch/app/tasks/tuned_cache.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <optional>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/hash.h"
#include "runtime/device/device.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

std::optional<fs::path> folder_in(const char* variable) {
  const char* value = std::getenv(variable);
  if (value == nullptr || *value != '/') return std::nullopt;  // as the XDG specification has it
  return value;
}

/// Such as NVIDIA-H200-1f0c2b3a4d5e6f70.json.
std::string file_name(const TunedFor& machine) {
  std::string text;
  for (const auto& [name, value] : machine) text += name + "=" + value + "\n";
  std::string name = machine.at("GPU");
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '-');
  return fmt::format("{}-{}.json", name, xxh3_128(text.data(), text.size()).substr(0, 16));
}

/// What the file holds; nothing where there is none or one of no use, of which `level` tells.
TunedChoices::Map read_choices(const fs::path& path, const TunedFor& machine, spdlog::level::level_enum level) {
  try {
    return fs::exists(path) ? parse_tuned(MappedFile(path).text(), path.string(), machine) : TunedChoices::Map{};
  } catch (const std::exception& error) {
    spdlog::log(level, "Tuning starts afresh: {}", error.what());
    return {};
  }
}

std::string from_first(const World& ranks, const std::string& text) { return ranks.all_gather(text).front(); }

std::string stage_text(int stage, int stages) {
  return stages == 1 ? "" : fmt::format("stage {} of {}: ", stage, stages);
}

/// What a stage takes of the file: its own choices, and those of runs without stages for other work.
TunedChoices::Map choices_for(const std::string& stage, const TunedChoices::Map& kept) {
  TunedChoices::Map choices;
  for (const auto& [work, choice] : kept) {
    if (!stage.empty() && work.starts_with(stage)) choices[work.substr(stage.size())] = choice;
  }
  for (const auto& [work, choice] : kept) {
    if (!work.starts_with("stage ")) choices.emplace(work, choice);
  }
  return choices;
}

}  // namespace

fs::path default_tune_cache() {
  if (const auto cache = folder_in("XDG_CACHE_HOME")) return *cache / "ddptrain";
  if (const auto home = folder_in("HOME")) return *home / ".cache" / "ddptrain";
  return {};
}

TunedFor tuned_for(const std::string& gpu) {
  return {{"GPU", gpu},
          {"driver", first_line("/sys/module/nvidia/version")},
          {"CUDA", cuda_version()},
          {"cuBLAS", cublas_version()},
          {"cuDNN", cudnn_version()},
          {"ddptrain", DDPTRAIN_VERSION}};
}

TunedCache::TunedCache(const World& world, const Mesh& mesh, TunedChoices& choices, const std::string& folder,
                       TunedFor machine)
    : world_(world),
      stage_(stage_text(mesh.stage(), mesh.shape().stages)),
      choices_(choices),
      machine_(std::move(machine)) {
  const std::vector<std::string> machines = world.all_gather(tuned_text(machine_, {}));
  if (!differences(machines).empty()) {
    if (world.rank() == 0) {
      spdlog::warn("Tuning: GPUs, drivers or libraries differ, so each rank chooses for itself and nothing is kept");
    }
    return;
  }
  gathers_ = folder != "off" && !mesh.shape().replica_is_one_rank();
  std::string kept;
  if (world.rank() == 0 && folder != "off") {
    const fs::path parent = folder.empty() ? default_tune_cache() : fs::path(folder);
    if (!parent.empty()) path_ = parent / file_name(machine_);
    if (!path_.empty()) kept = tuned_text(machine_, read_choices(path_, machine_, spdlog::level::warn));
  }
  kept = from_first(world, kept);
  TunedChoices::Map known;
  if (!kept.empty()) known = parse_tuned(kept, "the choices of rank 0", machine_);
  if (world.rank() == 0 && !known.empty()) {
    spdlog::info("Tuning: choices of {} ({})", path_.string(), known.size());
  }
  choices_.restore(choices_for(stage_, known));
  const World& stage_ranks = mesh.stage_ranks();
  if (stage_ranks.size() == 1) return;
  choices_.share([&stage_ranks](const std::string& mine) { return from_first(stage_ranks, mine); });
}

TunedChoices::Map TunedCache::of_all_ranks(const TunedChoices::Map& mine) const {
  if (!gathers_) return mine;
  TunedChoices::Map all;
  for (const std::string& text : world_.all_gather(tuned_text(machine_, mine))) {
    all.merge(parse_tuned(text, "the choices of a rank", machine_));
  }
  return all;
}

void TunedCache::save() {
  TunedChoices::Map made, refused;
  for (const auto& [work, choice] : choices_.take_new()) made[stage_ + work] = choice;
  for (const std::string& work : choices_.take_refused()) {
    refused[work] = refused[stage_ + work] = "";  // either was taken
  }
  made = of_all_ranks(made);
  refused = of_all_ranks(refused);
  if (path_.empty() || (made.empty() && refused.empty())) return;
  try {
    TunedChoices::Map all = read_choices(path_, machine_, spdlog::level::debug);
    for (const auto& [work, none] : refused) all.erase(work);
    for (const auto& [work, choice] : made) all[work] = choice;
    fs::create_directories(path_.parent_path());
    AtomicFile file(path_, fmt::format(".{}.{}.partial", world_.hostname(), getpid()));
    file.write(tuned_text(machine_, all));
    file.commit();
    spdlog::info("Tuning: new choices are kept in {} ({})", path_.string(), made.size());
  } catch (const std::exception& error) {
    spdlog::warn("Tuning: choices are not kept: {}", error.what());
  }
}

}  // namespace ddptrain
