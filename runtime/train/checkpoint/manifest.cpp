#include "runtime/train/checkpoint/manifest.h"

#include <algorithm>
#include <array>
#include <fstream>
#include <iterator>
#include <limits>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/hash.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ddptrain checkpoint";
constexpr int kVersion = 2;
constexpr std::int64_t kMost = std::int64_t{1} << 40;  // upper limit of all counts
constexpr const char* kChecksum = ",\n \"xxh3_128\": \"";

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
  return {.epoch = json.at("epoch").get<std::int64_t>(),
          .step = json.at("step").get<std::int64_t>(),
          .train_loss = number_in(json.at("train_loss")),
          .train_accuracy = number_in(json.at("train_accuracy")),
          .test_loss = number_in(json.at("test_loss")),
          .test_accuracy = number_in(json.at("test_accuracy")),
          .samples_per_second = number_in(json.at("samples_per_second"))};
}

std::int64_t count_in(const nlohmann::json& json, const char* name, std::int64_t least) {
  const nlohmann::json& count = json.at(name);
  if (count.is_number_integer() && count >= least && count <= kMost) return count;
  usage_error("damaged: {} is {}", name, printable(count.dump(), 40));
}

RunIdentity run_in(const nlohmann::json& json) {
  RunIdentity run;
  json.at("model").get_to(run.model);
  json.at("sizes").get_to(run.sizes);
  if (json.contains("special_tokens")) json.at("special_tokens").get_to(run.special_tokens);
  json.at("data").get_to(run.data);
  json.at("precision").get_to(run.precision);
  json.at("seed").get_to(run.seed);
  run.batch = count_in(json, "batch_per_rank", 1);
  run.grad_accum = count_in(json, "grad_accum", 1);
  run.samples_per_step = count_in(json, "samples_per_step", 1);
  run.steps_per_epoch = count_in(json, "steps_per_epoch", 1);
  const auto ranks = static_cast<std::int64_t>(json.at("files").size());
  if (count_in(json, "world_size", 1) != ranks) usage_error("damaged: not one file of each rank");
  const auto axis = [&](const char* name) { return json.contains(name) ? count_in(json, name, 1) : 1; };
  const std::int64_t stages = axis("stages");
  const std::int64_t tensor = axis("tensor");
  if (stages > ranks || tensor > ranks || ranks % (stages * tensor) != 0)
    usage_error("damaged: {} ranks of {} stages and {} parts", ranks, stages, tensor);
  run.mesh = {static_cast<int>(stages), static_cast<int>(ranks / (stages * tensor)), static_cast<int>(tensor)};
  run.other_tensor = json.value("other_tensor", false);
  json.at("configuration").get_to(run.flags);
  json.at("versions").get_to(run.versions);
  return run;
}

RunProgress progress_in(const nlohmann::json& json) {
  RunProgress progress;
  progress.step = count_in(json, "step", 0);
  for (const auto& epoch : json.at("epochs")) progress.epochs.push_back(epoch_in(epoch));
  progress.epoch_sums = sums_in(json.at("epoch_sums"));
  for (const auto& sums : json.at("rank_sums")) progress.rank_sums.push_back(sums_in(sums));
  if (json.contains("logged_sums")) progress.logged_sums = sums_in(json.at("logged_sums"));
  return progress;
}

ArrayInfo array_in(const nlohmann::json& json) {
  ArrayInfo array{json.at("name"), json.at("shape"), json.at("dtype"), placement_of(json.at("placement"))};
  std::int64_t elements = 1;
  for (const std::int64_t size : array.shape) {
    if (size < 0 || size > kMost / std::max<std::int64_t>(elements, 1))
      usage_error("{:.80}: a size of {}", array.name, size);
    elements *= size;
  }
  return array;
}

CheckpointFile file_in(const nlohmann::json& json) {
  CheckpointFile file{json.at("name"), json.at("bytes"), json.at("xxh3_128")};
  if (file.name.empty() || fs::path(file.name).filename() != file.name) usage_error("'{:.80}' is no file", file.name);
  return file;
}

/// Whether UTF-8 text has control characters: up to U+001F, and U+007F to U+009F.
bool has_control_characters(const std::string& text) {
  const auto is_control = [](unsigned char byte) { return byte < ' ' || byte == 0x7F; };
  if (std::any_of(text.begin(), text.end(), is_control)) return true;
  for (std::size_t i = text.find('\xC2'); i < text.size(); i = text.find('\xC2', i + 1)) {
    if (static_cast<unsigned char>(text[i + 1]) < 0xA0) return true;
  }
  return false;
}

/// Texts of a manifest are printed on terminals and in logs.
void require_printable(const nlohmann::json& json) {
  const auto check = [](const std::string& text) {
    if (has_control_characters(text)) usage_error("damaged: it has control characters");
  };
  const nlohmann::json values = json.flatten();
  for (const auto& [path, value] : values.items()) {
    check(path);
    if (value.is_string()) check(value);
  }
}

}  // namespace

std::uint64_t Manifest::bytes() const {
  std::uint64_t sum = 0;
  for (const CheckpointFile& file : files) sum += file.bytes;
  return sum;
}

namespace {

Json json_of(const ArrayInfo& array) {
  return {
      {"name", array.name}, {"shape", array.shape}, {"dtype", array.dtype}, {"placement", name_of(array.placement)}};
}

}  // namespace

bool had_other_tensor(const RunIdentity& saved, const RunIdentity& now) {
  return saved.other_tensor || saved.mesh.tensor != now.mesh.tensor;
}

std::string to_json(const ArrayInfo& array) { return json_of(array).dump(); }

ArrayInfo parse_array(std::string_view json) { return array_in(nlohmann::json::parse(json)); }

std::string to_json(const Manifest& manifest) {
  const RunIdentity& run = manifest.run;
  Json json = {{"format", kFormat},
               {"version", kVersion},
               {"step", manifest.progress.step},
               {"written", manifest.written},
               {"model", run.model},
               {"sizes", run.sizes},
               {"special_tokens", run.special_tokens},
               {"precision", run.precision},
               {"seed", run.seed},
               {"world_size", run.mesh.ranks()},
               {"stages", run.mesh.stages},
               {"tensor", run.mesh.tensor},
               {"other_tensor", run.other_tensor},
               {"batch_per_rank", run.batch},
               {"grad_accum", run.grad_accum},
               {"samples_per_step", run.samples_per_step},
               {"steps_per_epoch", run.steps_per_epoch},
               {"data", run.data},
               {"configuration", run.flags},
               {"versions", run.versions},
               {"epoch_sums", json_of(manifest.progress.epoch_sums)},
               {"rank_sums", Json::array()},
               {"logged_sums", json_of(manifest.progress.logged_sums)},
               {"epochs", Json::array()},
               {"files", Json::array()},
               {"arrays", Json::array()}};
  for (const MetricSums& sums : manifest.progress.rank_sums) json["rank_sums"].push_back(json_of(sums));
  for (const EpochResult& epoch : manifest.progress.epochs) json["epochs"].push_back(json_of(epoch));
  for (const CheckpointFile& file : manifest.files) {
    json["files"].push_back({{"name", file.name}, {"bytes", file.bytes}, {"xxh3_128", file.hash}});
  }
  for (const ArrayInfo& array : manifest.arrays) json["arrays"].push_back(json_of(array));
  return with_checksum(json.dump(1, ' ', false, Json::error_handler_t::replace));  // a path need not be UTF-8
}

std::string with_checksum(std::string_view json) {
  std::string text(json.substr(0, std::min(json.rfind(kChecksum), json.rfind("\n}"))));
  return text + kChecksum + xxh3_128(text.data(), text.size()) + "\"\n}\n";
}

Manifest parse_manifest(std::string_view text, const std::string& name) {
  const nlohmann::json json = parse_json_object(text, name);
  try {
    if (json.value("format", "") != kFormat) usage_error("not the manifest of a checkpoint");
    if (const int version = json.at("version"); version != kVersion) {
      usage_error("format version {}, and this program reads version {}: use the ddptrain that wrote it", version,
                  kVersion);
    }
    if (with_checksum(text) != text) usage_error("damaged: its XXH3-128 is not the one that it names");
    require_printable(json);
    Manifest manifest{run_in(json), progress_in(json), {}, {}, json.at("written")};
    for (const auto& file : json.at("files")) manifest.files.push_back(file_in(file));
    for (const auto& array : json.at("arrays")) manifest.arrays.push_back(array_in(array));
    const std::size_t sums =
        manifest.progress.rank_sums.size();  // one or several per replica: one for each virtual rank
    const auto replicas = static_cast<std::size_t>(manifest.run.mesh.replicas);
    if (sums == 0 || sums % replicas != 0)
      usage_error("damaged: {} sums of {}", sums, counted(manifest.run.mesh.replicas, "replica"));
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    usage_error("{}: damaged: {:.200}", name, error.what());
  } catch (const UsageError& error) {
    usage_error("{}: {}", name, error.what());
  }
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / kManifestName;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) usage_error("{}: not a file that can be read", path.string());
  std::string text(fs::file_size(path), '\0');
  std::ifstream file(path, std::ios::binary);
  if (!file.read(text.data(), static_cast<std::streamsize>(text.size())))
    usage_error("{}: cannot be read", path.string());
  return parse_manifest(text, path.string());
}

}  // namespace ddptrain
