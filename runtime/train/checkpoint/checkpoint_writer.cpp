#include "runtime/train/checkpoint/checkpoint_writer.h"

#include <spdlog/fmt/chrono.h>

#include <chrono>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }

std::string utc() { return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(std::time(nullptr))); }

/// Runs `work` in a thread. The result is JSON: {"error": text} if `work` throws.
std::future<std::string> in_background(std::function<std::string()> work) {
  return std::async(std::launch::async, [work = std::move(work)] {
    try {
      return work();
    } catch (const std::exception& error) {
      return json{{"error", error.what()}}.dump(-1, ' ', false, json::error_handler_t::replace);
    }
  });
}

/// The arrays that the ranks with one slice of a stage write. All ranks have the number of the step; the first stage
/// and slice write it.
std::vector<StateArray> arrays_of(const TrainingState& state, int stage, int tensor_rank) {
  std::vector<StateArray> arrays = state.arrays();
  const bool is_first = stage == 0 && tensor_rank == 0;
  std::erase_if(arrays, [&](const StateArray& array) { return array.is_copy || (array.name == "step" && !is_first); });
  return arrays;
}

std::string error_in(const json& result) { return result.value("error", ""); }

}  // namespace

CheckpointWriter::CheckpointWriter(CheckpointOptions options, RunIdentity run, const Trainer& trainer,
                                   const World& world, std::vector<StateArray> more)
    : options_(std::move(options)),
      run_(std::move(run)),
      trainer_(trainer),
      world_(world),
      more_(std::move(more)),
      device_(trainer.device()),
      file_name_(arrays_file_name(world.rank())) {
  lay_out();
  total_bytes_ = world.sum(static_cast<double>(image_bytes_));
}

CheckpointWriter::~CheckpointWriter() = default;

/// What this rank can write of its state.
std::vector<StateArray> CheckpointWriter::all_arrays() const {
  const int rank = world_.rank();
  std::vector<StateArray> all = arrays_of(trainer_.state(), run_.mesh.stage_of(rank), run_.mesh.tensor_rank_of(rank));
  all.insert(all.end(), more_.begin(), more_.end());
  return all;
}

std::vector<std::string> CheckpointWriter::own_arrays() const {
  std::vector<std::string> arrays;
  const int rank = world_.rank();
  if (run_.mesh.replica_of(rank) != 0 || run_.mesh.tensor_rank_of(rank) != 0) return arrays;
  for (const StateArray& array : all_arrays()) {
    arrays.push_back(to_json(ArrayInfo{array.name, array.shape(), name_of(array.dtype), array.placement}));
  }
  return arrays;
}

void CheckpointWriter::lay_out() {
  std::vector<NamedTensor> tensors;
  std::map<std::string, Tensor> values;
  const int rank = world_.rank();
  for (const StateArray& array : arrays_to_write(all_arrays(), run_.mesh.replica_of(rank), run_.mesh.replicas)) {
    for (const StateArray::Piece& piece : array.pieces) {
      const std::string name = piece_name(array, piece);
      const bool whole = name == array.name;
      tensors.emplace_back(name, StoredTensor{stored_type(array.dtype), whole ? array.shape() : piece.values.shape});
      values[name] = piece.values;
    }
  }
  sort_for_safetensors(tensors);
  const std::string head = safetensors_head(tensors, {{"format", "pt"}});
  image_bytes_ = head.size();
  for (const auto& [name, tensor] : tensors) {
    places_.push_back({values.at(name), image_bytes_});
    image_bytes_ += places_.back().values.bytes();
  }
  image_ = device_.allocate_pinned(image_bytes_);
  std::memcpy(image_.data(), head.data(), head.size());
}

/// A check before the write. Other programs may still fill the disk.
bool CheckpointWriter::enough_space() const {
  std::error_code error;
  const fs::space_info space = fs::space(options_.folder, error);
  return error || static_cast<double>(space.available) >= total_bytes_;
}

std::optional<WrittenCheckpoint> CheckpointWriter::start(RunProgress progress) {
  DDP_CHECK(!busy(), "two checkpoints at once");
  const double begin = now();
  progress_ = std::move(progress);
  current_ = {};
  current_.step = progress_.step;
  current_.path = checkpoint_path(options_.folder, progress_.step).string();
  current_.bytes = static_cast<std::uint64_t>(total_bytes_);
  const int full =
      static_cast<int>(world_.min(enough_space() ? world_.size() : world_.rank()));  // the lowest rank without space
  if (full < world_.size()) {
    return finish(fmt::format("rank {} ({}): the disk of {} has not the {:.1f} MB free that it takes", full,
                              world_.all_gather(world_.hostname())[static_cast<std::size_t>(full)], options_.folder,
                              1e-6 * total_bytes_));
  }
  device_.finish_unfinished();
  for (const Place& place : places_) {
    device_.copy(static_cast<char*>(image_.data()) + place.at, place.values.data, place.values.bytes(),
                 device_.compute_stream());
  }
  sums_ = trainer_.metrics().training();
  device_.synchronize();
  started_ = now();
  current_.pause_seconds = started_ - begin;
  phase_ = Phase::writing;
  work_ = in_background([this] { return write_file(); });
  return std::nullopt;
}

std::string CheckpointWriter::write_file() const {
  const fs::path folder = current_.path;
  if (fs::is_symlink(folder)) fail("{}: a link is in the way", folder.string());
  fs::create_directories(folder);
  if (world_.rank() == 0 && has_manifest(folder)) fs::remove(folder / kManifestName);
  AtomicFile file(folder / file_name_);
  file.write(image_.data(), image_bytes_);
  file.commit();
  return json{{"name", file_name_}, {"bytes", image_bytes_}, {"xxh3_128", xxh3_128(image_.data(), image_bytes_)}}
      .dump();
}

std::string CheckpointWriter::publish(Manifest manifest) {
  const fs::path folder = options_.folder;
  sync_folder(folder);
  AtomicFile file(fs::path(current_.path) / kManifestName);
  file.write(to_json(manifest));
  file.commit();
  if (const std::string fault = fault_of_layout(current_.path); !fault.empty()) {
    fs::remove(fs::path(current_.path) / kManifestName);
    fail("it cannot be read: {}", fault);
  }
  undamaged_[current_.step] = true;
  remove_old_checkpoints(folder, current_.step, options_.keep, undamaged_);
  return "{}";
}

std::optional<WrittenCheckpoint> CheckpointWriter::poll() {
  if (!busy()) return std::nullopt;
  const bool done = work_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
  if (world_.min(done ? 1.0 : 0.0) == 0.0) return std::nullopt;
  return advance();
}

std::optional<WrittenCheckpoint> CheckpointWriter::wait() {
  std::optional<WrittenCheckpoint> result;
  while (busy()) result = advance();
  return result;
}

/// Waits until all ranks have finished the phase.
std::optional<WrittenCheckpoint> CheckpointWriter::advance() {
  json mine = json::parse(work_.get());
  mine["host"] = world_.hostname();
  mine["arrays"] = own_arrays();
  const std::vector<std::string> results = world_.all_gather(mine.dump(-1, ' ', false, json::error_handler_t::replace));
  current_.pause_seconds = world_.max(current_.pause_seconds);
  const bool has_loss =
      run_.mesh.stage_of(world_.rank()) + 1 == run_.mesh.stages && run_.mesh.tensor_rank_of(world_.rank()) == 0;
  Manifest manifest{run_, progress_, {}, {}, utc()};
  manifest.progress.rank_sums = world_.all_gather(has_loss ? sums_ : std::vector<MetricSums>{});
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    const json result = json::parse(results[rank]);
    if (const std::string error = error_in(result); !error.empty())
      return finish(fmt::format("rank {} ({}): {}", rank, result.at("host").get<std::string>(), error));
    if (phase_ == Phase::publishing) continue;
    manifest.files.push_back({result.at("name"), result.at("bytes"), result.at("xxh3_128")});
    for (const std::string array : result.at("arrays")) manifest.arrays.push_back(parse_array(array));
  }
  if (phase_ == Phase::publishing) return finish("");
  phase_ = Phase::publishing;
  const bool publishes = world_.rank() == 0;
  work_ =
      in_background([this, publishes, manifest = std::move(manifest)] { return publishes ? publish(manifest) : "{}"; });
  return std::nullopt;
}

std::optional<WrittenCheckpoint> CheckpointWriter::finish(std::string error) {
  phase_ = Phase::idle;
  if (!error.empty() && world_.rank() == 0 && !has_manifest(current_.path)) remove_checkpoint(current_.path);
  current_.error = std::move(error);
  current_.write_seconds = started_ > 0.0 ? now() - started_ : 0.0;
  return current_;
}

}  // namespace ddptrain
