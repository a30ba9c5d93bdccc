#include "runtime/train/manifest.h"

#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/core/json.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ddptrain checkpoint";
constexpr int kVersion = 1;

constexpr std::array<std::pair<Placement, const char*>, 3> kPlacements = {
    {{Placement::replicated, "replicated"}, {Placement::sharded, "sharded"}, {Placement::per_rank, "per rank"}}};

const char* name_of(Placement placement) { return kPlacements.at(static_cast<std::size_t>(placement)).second; }

Placement placement_of(const std::string& name) {
  for (const auto& [placement, text] : kPlacements) {
    if (name == text) return placement;
  }
  usage_error("unknown placement '{:.40}'", name);
}

Json json_of(const MetricSums& sums) {
  return {{"loss", sums.loss}, {"correct", sums.correct}, {"samples", sums.samples}};
}

/// JSON has no NaN: it is written as null.
double number_in(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

MetricSums sums_in(const nlohmann::json& json) {
  return {number_in(json.at("loss")), json.at("correct").get<std::uint64_t>(), json.at("samples").get<std::uint64_t>()};
}

Json json_of(const EpochResult& epoch) {
  return {{"epoch", epoch.epoch},
          {"step", epoch.step},
          {"train_loss", epoch.train_loss},
          {"train_accuracy", epoch.train_accuracy},
          {"test_loss", epoch.test_loss},
          {"test_accuracy", epoch.test_accuracy},
          {"samples_per_second", epoch.samples_per_second}};
}

EpochResult epoch_in(const nlohmann::json& json) {
  return {json.at("epoch").get<std::int64_t>(),    json.at("step").get<std::int64_t>(),
          number_in(json.at("train_loss")),        number_in(json.at("train_accuracy")),
          number_in(json.at("test_loss")),         number_in(json.at("test_accuracy")),
          number_in(json.at("samples_per_second"))};
}

RunIdentity run_in(const nlohmann::json& json) {
  RunIdentity run;
  json.at("model").get_to(run.model);
  json.at("sizes").get_to(run.sizes);
  json.at("data").get_to(run.data);
  json.at("precision").get_to(run.precision);
  json.at("seed").get_to(run.seed);
  json.at("batch_per_rank").get_to(run.batch);
  json.at("grad_accum").get_to(run.grad_accum);
  json.at("samples_per_step").get_to(run.samples_per_step);
  json.at("steps_per_epoch").get_to(run.steps_per_epoch);
  json.at("world_size").get_to(run.world_size);
  json.at("configuration").get_to(run.flags);
  json.at("versions").get_to(run.versions);
  if (run.world_size < 1 || run.steps_per_epoch < 1) usage_error("world_size and steps_per_epoch are not above 0");
  return run;
}

RunProgress progress_in(const nlohmann::json& json) {
  RunProgress progress;
  json.at("step").get_to(progress.step);
  for (const auto& epoch : json.at("epochs")) progress.epochs.push_back(epoch_in(epoch));
  progress.epoch_sums = sums_in(json.at("epoch_sums"));
  for (const auto& sums : json.at("rank_sums")) progress.rank_sums.push_back(sums_in(sums));
  if (progress.step < 0) usage_error("step {}", progress.step);
  return progress;
}

ArrayInfo array_in(const nlohmann::json& json) {
  ArrayInfo array{json.at("name"), json.at("shape"), json.at("dtype"), placement_of(json.at("placement"))};
  for (const std::int64_t size : array.shape) {
    if (size < 0 || size > std::numeric_limits<std::int32_t>::max()) usage_error("{}: a size of {}", array.name, size);
  }
  return array;
}

CheckpointFile file_in(const nlohmann::json& json) {
  CheckpointFile file{json.at("name"), json.at("bytes"), json.at("xxh3_128")};
  if (file.name.empty() || fs::path(file.name).filename() != file.name) usage_error("'{:.80}' is no file", file.name);
  return file;
}

std::string hash_of(const std::map<std::string, std::string>& flags) {
  Hash128 hash;
  for (const auto& [name, value] : flags) {
    hash.add(name);
    hash.add(value);
  }
  return hash.hex();
}

}  // namespace

std::uint64_t Manifest::bytes() const {
  std::uint64_t sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

std::string to_json(const Manifest& manifest) {
  const RunIdentity& run = manifest.run;
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"step", manifest.progress.step},
               {"written", manifest.written},
               {"model", run.model},
               {"sizes", run.sizes},
               {"precision", run.precision},
               {"seed", run.seed},
               {"world_size", run.world_size},
               {"batch_per_rank", run.batch},
               {"grad_accum", run.grad_accum},
               {"samples_per_step", run.samples_per_step},
               {"steps_per_epoch", run.steps_per_epoch},
               {"data", run.data},
               {"configuration", run.flags},
               {"configuration_hash", hash_of(run.flags)},
               {"versions", run.versions},
               {"epoch_sums", json_of(manifest.progress.epoch_sums)},
               {"rank_sums", Json::array()},
               {"epochs", Json::array()},
               {"files", Json::array()},
               {"arrays", Json::array()}};
  for (const MetricSums& sums : manifest.progress.rank_sums) json["rank_sums"].push_back(json_of(sums));
  for (const EpochResult& epoch : manifest.progress.epochs) json["epochs"].push_back(json_of(epoch));
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}});
  }
  for (const ArrayInfo& array : manifest.arrays) {
    json["arrays"].push_back({{"name", array.name},
                              {"shape", array.shape},
                              {"dtype", array.dtype},
                              {"placement", name_of(array.placement)}});
  }
  return json.dump(1) + "\n";
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json_object(text, name);
  try {
    if (json.value("format", "") != kFormat) usage_error("not the manifest of a checkpoint");
    if (const int version = json.at("version"); version != kVersion) {
      usage_error("format version {}, and this program reads version {}", version, kVersion);
    }
    Manifest manifest{run_in(json), progress_in(json), {}, {}, json.at("written")};
    for (const auto& file : json.at("files")) manifest.files.push_back(file_in(file));
    for (const auto& array : json.at("arrays")) manifest.arrays.push_back(array_in(array));
    if (json.at("configuration_hash") != hash_of(manifest.run.flags)) {
      usage_error("damaged: its configuration does not have the hash that it names");
    }
    const auto ranks = static_cast<std::size_t>(manifest.run.world_size);
    const std::size_t sums = manifest.progress.rank_sums.size();  // of several virtual ranks of each rank, or one
    if (manifest.files.size() != ranks || sums == 0 || sums % ranks != 0) {
      usage_error("damaged: {} files and {} sums of {} ranks", manifest.files.size(), sums, ranks);
    }
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    usage_error("{}: damaged: {:.200}", name, error.what());
  } catch (const UsageError& error) {
    usage_error("{}: {}", name, error.what());
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  std::ifstream file(path, std::ios::binary);
  if (!file) usage_error("{}: cannot be read", path.string());
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  return parse_manifest(text, path.string());
}

}  // namespace ddptrain
