#include "runtime/train/checkpoint.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <sstream>
#include <utility>

#include "runtime/core/atomic_file.h"
#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/core/json.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr const char* kFormat = "ddptrain checkpoint";
constexpr int kVersion = 1;
constexpr const char* kStep = "step-";

// --- the manifest ---------------------------------------------------------------------------------------------------

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
    if (manifest.files.size() != ranks || manifest.progress.rank_sums.size() != ranks) {
      usage_error("damaged: not one file and one sum for each of {} ranks", ranks);
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

// --- folders --------------------------------------------------------------------------------------------------------

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:012}", kStep, step);
}

std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(kStep, 0) != 0) continue;
    const char* first = name.data() + std::string_view(kStep).size();
    std::int64_t step = 0;
    const auto [rest, failed] = std::from_chars(first, name.data() + name.size(), step);
    if (failed == std::errc{} && rest == name.data() + name.size() && step >= 0) found.emplace(step, entry->path());
  }
  return found;
}

bool has_manifest(const fs::path& checkpoint) {
  std::error_code error;
  return fs::exists(checkpoint / kManifestName, error);
}

namespace {

std::string fault_of_file(const fs::path& path, const CheckpointFile& expected) {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (bytes != expected.bytes) return fmt::format("{}: {} bytes in place of {}", path.string(), bytes, expected.bytes);
  const MappedFile file(path);
  if (const std::string hash = xxh3_128(file.data(), file.size()); hash != expected.hash) {
    return fmt::format("{}: damaged: its XXH3-128 is {} in place of {}", path.string(), hash, expected.hash);
  }
  return "";
}

}  // namespace

std::string fault_of(const fs::path& checkpoint, int reader, int readers) {
  if (!has_manifest(checkpoint)) return fmt::format("{}: incomplete: it has no {}", checkpoint.string(), kManifestName);
  try {
    const Manifest manifest = read_manifest(checkpoint);
    const auto step = static_cast<std::size_t>(readers);
    for (auto i = static_cast<std::size_t>(reader); i < manifest.files.size(); i += step) {
      const std::string fault = fault_of_file(checkpoint / manifest.files[i].name, manifest.files[i]);
      if (!fault.empty()) return fault;
    }
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

namespace {

/// Whatever moment it ends at, no complete checkpoint with missing files is left.
void remove_checkpoint(const fs::path& checkpoint) {
  fs::remove(checkpoint / kManifestName);
  sync_folder(checkpoint);
  fs::remove_all(checkpoint);
}

}  // namespace

void remove_old_checkpoints(const fs::path& folder, std::int64_t step, std::int64_t keep) {
  const auto found = checkpoints_in(folder);
  for (auto entry = std::make_reverse_iterator(found.upper_bound(step)); entry != found.rend(); ++entry) {
    if (has_manifest(entry->second) && keep-- > 0) continue;
    remove_checkpoint(entry->second);
  }
}

namespace {

/// What ranks find wrong with it; the same on all of them.
std::string agreed_fault(const World& world, const fs::path& checkpoint) {
  const auto faults = world.all_gather(fault_of(checkpoint, world.rank(), world.size()));
  for (std::size_t rank = 0; rank < faults.size(); ++rank) {
    if (!faults[rank].empty()) return world.size() > 1 ? fmt::format("rank {}: {}", rank, faults[rank]) : faults[rank];
  }
  return "";
}

Checkpoint read(const World& world, const fs::path& path) {
  Checkpoint checkpoint{path, {}};
  world.agree([&] { checkpoint.manifest = read_manifest(path); });
  return checkpoint;
}

}  // namespace

std::optional<Checkpoint> find_checkpoint(const World& world, const fs::path& path) {
  const bool single = world.max(has_manifest(path) ? 1.0 : 0.0) > 0.0;
  if (single) {
    const std::string fault = agreed_fault(world, path);
    world.agree([&] {
      if (!fault.empty()) usage_error("{}", fault);
    });
    return read(world, path);
  }
  std::string steps;  // as rank 0 sees them, newest first
  const auto found = checkpoints_in(path);
  for (auto entry = found.rbegin(); entry != found.rend(); ++entry) steps += entry->second.filename().string() + '\n';
  std::istringstream names(world.all_gather(steps).front());
  for (std::string name; std::getline(names, name);) {
    const std::string fault = agreed_fault(world, path / name);
    if (fault.empty()) return read(world, path / name);
    if (world.rank() == 0) spdlog::warn("Checkpoint skipped: {}", fault);
  }
  return std::nullopt;
}

// --- arrays ---------------------------------------------------------------------------------------------------------

std::vector<StateArray> arrays_to_write(std::vector<StateArray> arrays, int rank, int ranks) {
  std::int64_t total = 0;
  for (const StateArray& array : arrays) {
    if (array.placement == Placement::replicated) {
      total += static_cast<std::int64_t>(array.pieces.at(0).values.bytes());
    }
  }
  const std::int64_t first = total * rank / ranks;
  const std::int64_t last = total * (rank + 1) / ranks;
  std::int64_t at = 0;
  for (StateArray& array : arrays) {
    if (array.placement != Placement::replicated) continue;
    StateArray::Piece& piece = array.pieces.at(0);
    const std::int64_t size = piece.values.size();
    const auto element = static_cast<std::int64_t>(size_of(array.dtype));
    const auto element_at = [&](std::int64_t byte) {
      return byte <= at ? 0 : std::min((byte - at + element - 1) / element, size);
    };
    const std::int64_t begin = element_at(first);
    const std::int64_t end = element_at(last);
    at += size * element;
    piece.begin = begin;
    piece.values.data = piece.values.as<char>() + begin * element;
    piece.values.shape = {end - begin};
    if (begin == end) array.pieces.clear();
  }
  return arrays;
}

std::string piece_name(const StateArray& array, const StateArray::Piece& piece) {
  const std::int64_t count = piece.values.size();
  if (piece.begin == 0 && count == element_count(array.shape)) return array.name;
  return fmt::format("{}[{}:{}]", array.name, piece.begin, piece.begin + count);
}

StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return StoredType::f64;
    case DType::f32:
      return StoredType::f32;
    case DType::bf16:
      return StoredType::bf16;
    case DType::i32:
      return StoredType::i32;
    case DType::u8:
      return StoredType::u8;
    default:
      fail("state of {} cannot be stored", name_of(dtype));
  }
}

namespace {

struct PieceName {
  std::string array;
  std::int64_t begin = 0;
};

PieceName parse_piece_name(const std::string& name) {
  const std::size_t bracket = name.rfind('[');
  if (bracket == std::string::npos || name.back() != ']') return {name};
  PieceName piece{name.substr(0, bracket)};
  const auto [rest, failed] = std::from_chars(name.data() + bracket + 1, name.data() + name.size(), piece.begin);
  if (failed != std::errc{} || *rest != ':' || piece.begin < 0)
    usage_error("'{:.80}' names no piece of an array", name);
  return piece;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

CheckpointReader::CheckpointReader(const Checkpoint& checkpoint) : manifest_(checkpoint.manifest) {
  for (const ArrayInfo& array : manifest_.arrays) arrays_[array.name] = &array;
  for (const CheckpointFile& file : manifest_.files) {
    const SafetensorsFile& opened = files_.emplace_back(checkpoint.path / file.name);
    for (const auto& [name, tensor] : opened.tensors()) {
      const PieceName piece = parse_piece_name(name);
      const std::int64_t count = element_count(tensor.shape);
      const auto info = arrays_.find(piece.array);
      if (info == arrays_.end() || lower_case(name_of(tensor.type)) != info->second->dtype ||
          count > element_count(info->second->shape) || piece.begin > element_count(info->second->shape) - count) {
        usage_error("{}: '{}' fits no array of the manifest", opened.name(), name);
      }
      stored_[piece.array].push_back(
          {static_cast<int>(files_.size()) - 1, piece.begin, count, tensor.data, size_of(tensor.type)});
    }
  }
}

void CheckpointReader::read(
    const std::string& array, std::int64_t begin, std::int64_t count, int rank,
    const std::function<void(std::int64_t at, const std::uint8_t* data, std::size_t bytes)>& take) const {
  const auto info = arrays_.find(array);
  const auto stored = stored_.find(array);
  if (info == arrays_.end() || stored == stored_.end()) fail("the checkpoint has no {}", array);
  const bool own = info->second->placement == Placement::per_rank;
  std::int64_t missing = count;
  for (const Stored& piece : stored->second) {
    if (own && piece.rank != rank % manifest_.run.world_size) continue;
    const std::int64_t first = std::max(begin, piece.begin);
    const std::int64_t last = std::min(begin + count, piece.begin + piece.count);
    if (first >= last) continue;
    const auto element = static_cast<std::int64_t>(piece.element_bytes);
    take(first - begin, piece.data + (first - piece.begin) * element,
         static_cast<std::size_t>((last - first) * element));
    missing -= last - first;
  }
  if (missing != 0) fail("the checkpoint lacks {} of {} elements of {}", missing, count, array);
}

std::map<std::string, std::pair<Shape, std::vector<float>>> CheckpointReader::parameters() const {
  constexpr std::string_view kWeight = "weight/";
  std::map<std::string, std::pair<Shape, std::vector<float>>> parameters;
  for (const ArrayInfo& array : manifest_.arrays) {
    if (array.name.rfind(kWeight, 0) != 0) continue;
    const std::string name = array.name.substr(kWeight.size());
    const auto master = arrays_.find("master/" + name);
    const ArrayInfo& source = master != arrays_.end() ? *master->second : array;
    if (source.dtype != ddptrain::name_of(DType::f32)) fail("{} is {}, not f32", source.name, source.dtype);
    std::vector<float> values(static_cast<std::size_t>(element_count(source.shape)));
    read(source.name, 0, element_count(source.shape), 0,
         [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
           std::memcpy(values.data() + at, data, bytes);
         });
    parameters[name] = {source.shape, std::move(values)};
  }
  return parameters;
}

namespace {

/// The first difference between what a checkpoint holds and what a run needs.
void check_arrays(const Checkpoint& checkpoint, const std::vector<StateArray>& needed) {
  std::map<std::string, const ArrayInfo*> stored;
  for (const ArrayInfo& array : checkpoint.manifest.arrays) stored[array.name] = &array;
  const std::string path = checkpoint.path.string();
  for (const StateArray& array : needed) {
    const auto found = stored.find(array.name);
    if (found == stored.end()) {
      usage_error("{} has no {}: it is of another model, optimizer or precision", path, array.name);
    }
    const ArrayInfo& info = *found->second;
    if (info.shape != array.shape || info.dtype != name_of(array.dtype)) {
      usage_error("{} has {} as {} [{}], and this run needs {} [{}]: it is of another shape or precision", path,
                  array.name, info.dtype, fmt::join(info.shape, ", "), name_of(array.dtype),
                  fmt::join(array.shape, ", "));
    }
    stored.erase(found);
  }
  if (stored.empty()) return;
  usage_error("{} has {}, which this run does not: it is of another model, optimizer or precision", path,
              stored.begin()->first);
}

}  // namespace

void restore_arrays(const Checkpoint& checkpoint, const TrainingState& state, const World& world, Device& device) {
  world.agree([&] {
    const std::vector<StateArray> arrays = state.arrays();
    check_arrays(checkpoint, arrays);
    const CheckpointReader reader(checkpoint);
    for (const StateArray& array : arrays) {
      for (const StateArray::Piece& piece : array.pieces) {
        const auto copy = [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
          const auto element = static_cast<std::int64_t>(size_of(array.dtype));
          device.copy_to_device(piece.values.as<char>() + at * element, data, bytes);
        };
        reader.read(array.name, piece.begin, piece.values.size(), world.rank(), copy);
      }
    }
  });
}

std::vector<MetricSums> restored_sums(const RunProgress& progress, int rank, int ranks, std::size_t count) {
  if (static_cast<std::size_t>(ranks) * count == progress.rank_sums.size()) {
    const auto first = progress.rank_sums.begin() + static_cast<std::ptrdiff_t>(static_cast<std::size_t>(rank) * count);
    return {first, first + static_cast<std::ptrdiff_t>(count)};
  }
  std::vector<MetricSums> sums(count);
  if (rank != 0) return sums;
  for (const MetricSums& of_rank : progress.rank_sums) {
    sums[0].loss += of_rank.loss;
    sums[0].correct += of_rank.correct;
    sums[0].samples += of_rank.samples;
  }
  return sums;
}

}  // namespace ddptrain
