#include "runtime/train/checkpoint/checkpoint.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <iterator>
#include <optional>
#include <sstream>
#include <utility>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr const char* kStep = "step-";
constexpr std::string_view kRank = "rank-";

}  // namespace

// --- folders --------------------------------------------------------------------------------------------------------

fs::path checkpoint_path(const fs::path& folder, std::int64_t step) {
  return folder / fmt::format("{}{:012}", kStep, step);
}

std::string arrays_file_name(int rank) { return fmt::format("{}{:05}.safetensors", kRank, rank); }

std::map<std::int64_t, fs::path> checkpoints_in(const fs::path& folder) {
  std::map<std::int64_t, fs::path> found;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    if (name.rfind(kStep, 0) != 0) continue;
    const char* first = name.data() + std::string_view(kStep).size();
    std::int64_t step = 0;
    const auto [rest, failed] = std::from_chars(first, name.data() + name.size(), step);
    if (failed == std::errc{} && step >= 0 && entry->path() == checkpoint_path(folder, step))
      found.emplace(step, entry->path());
  }
  if (error == std::errc::not_a_directory) {
    usage_error("{}: it is no folder. Name a checkpoint, or a folder of checkpoints.", folder.string());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    usage_error("{}: its checkpoints cannot be listed: {}", folder.string(), error.message());
  }
  return found;
}

bool has_manifest(const fs::path& checkpoint) {
  std::error_code error;
  return fs::status(checkpoint / kManifestName, error).type() != fs::file_type::not_found;
}

namespace {

std::string fault_of_file(const fs::path& path, const CheckpointFile& expected) {
  std::error_code error;
  const std::uint64_t bytes = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", path.string(), error.message());
  if (bytes != expected.bytes) return fmt::format("{}: {} bytes in place of {}", path.string(), bytes, expected.bytes);
  const std::string hash = xxh3_128_of_file(path);
  if (hash.empty()) return fmt::format("{}: cannot be read", path.string());
  if (hash == expected.hash) return "";
  return fmt::format("{}: damaged: its XXH3-128 is {} in place of {}", path.string(), hash, expected.hash);
}

}  // namespace

std::string fault_of_layout(const fs::path& checkpoint) {
  if (!has_manifest(checkpoint)) return fmt::format("{}: incomplete: it has no {}", checkpoint.string(), kManifestName);
  try {
    const Checkpoint found{checkpoint, read_manifest(checkpoint)};
    std::uint64_t step = 0;
    const CheckpointReader reader(found);
    reader.read("step", 0, sizeof(step), 0, [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
      std::memcpy(reinterpret_cast<char*>(&step) + at, data, bytes);
    });
    const std::int64_t named = found.manifest.progress.step;
    if (step == static_cast<std::uint64_t>(named)) return "";
    return fmt::format("{}: damaged: its manifest is of step {}, its arrays of step {}", checkpoint.string(), named,
                       step);
  } catch (const std::exception& error) {
    return error.what();
  }
}

std::string fault_of(const fs::path& checkpoint) {
  const std::string fault = fault_of_files(checkpoint);
  return fault.empty() ? fault_of_layout(checkpoint) : fault;
}

std::string fault_of_files(const fs::path& checkpoint, int reader, int readers) {
  if (!has_manifest(checkpoint)) return fmt::format("{}: incomplete: it has no {}", checkpoint.string(), kManifestName);
  try {
    const Manifest manifest = read_manifest(checkpoint);
    const auto step = static_cast<std::size_t>(readers);
    for (auto i = static_cast<std::size_t>(reader); i < manifest.files.size(); i += step) {
      const std::string fault = fault_of_file(checkpoint / manifest.files[i].name, manifest.files[i]);
      if (!fault.empty()) return fault;
    }
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

namespace {

/// Whether a run writes a file of this name into a checkpoint.
bool is_own(std::string_view name) {
  constexpr std::string_view kPartial = ".partial";
  if (name.ends_with(kPartial)) name.remove_suffix(kPartial.size());
  if (name == kManifestName) return true;
  int rank = 0;
  if (name.starts_with(kRank)) std::from_chars(name.data() + kRank.size(), name.data() + name.size(), rank);
  return name == arrays_file_name(rank);
}

}  // namespace

std::string remove_checkpoint(const fs::path& checkpoint) {
  try {
    if (fs::is_symlink(checkpoint)) return "";
    fs::remove(checkpoint / kManifestName);
    sync_folder(checkpoint);
    std::vector<fs::path> own;
    for (const fs::directory_entry& entry : fs::directory_iterator(checkpoint)) {
      if (is_own(entry.path().filename().string())) own.push_back(entry.path());
    }
    for (const fs::path& path : own) fs::remove(path);
  } catch (const std::exception& error) {
    return error.what();
  }
  std::error_code not_empty;
  fs::remove(checkpoint, not_empty);
  return "";
}

void remove_old_checkpoints(const fs::path& folder, std::int64_t step, std::int64_t keep,
                            std::map<std::int64_t, bool>& undamaged) {
  const auto found = checkpoints_in(folder);
  for (auto entry = std::make_reverse_iterator(found.upper_bound(step)); entry != found.rend(); ++entry) {
    if (keep > 0 && has_manifest(entry->second)) {
      const auto [known, is_new] = undamaged.try_emplace(entry->first);
      if (is_new) known->second = fault_of(entry->second).empty();
      if (known->second) --keep;
      continue;
    }
    const std::string fault = remove_checkpoint(entry->second);
    if (!fault.empty()) spdlog::warn("An old checkpoint cannot be removed: {}", fault);
  }
}

namespace {

std::string first_of(const std::vector<std::string>& faults) {
  for (std::size_t rank = 0; rank < faults.size(); ++rank) {
    if (!faults[rank].empty()) return faults.size() > 1 ? fmt::format("rank {}: {}", rank, faults[rank]) : faults[rank];
  }
  return "";
}

/// The fault that the lowest rank finds. Rank 0 checks the layout last, because that maps all files into memory.
std::string agreed_fault(const World& world, const fs::path& checkpoint) {
  const std::string fault = first_of(world.all_gather(fault_of_files(checkpoint, world.rank(), world.size())));
  if (!fault.empty()) return fault;
  return first_of(world.all_gather(world.rank() == 0 ? fault_of_layout(checkpoint) : ""));
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
  std::string steps;  // rank 0's list, newest first
  std::map<std::int64_t, fs::path> found;
  world.agree([&] { found = checkpoints_in(path); });
  for (auto entry = found.rbegin(); entry != found.rend(); ++entry) steps += entry->second.filename().string() + '\n';
  std::istringstream names(world.all_gather(steps).front());
  std::string faults;
  for (std::string name; std::getline(names, name);) {
    const std::string fault = agreed_fault(world, path / name);
    if (fault.empty()) return read(world, path / name);
    if (world.rank() == 0) spdlog::warn("Checkpoint skipped: {}", fault);
    if (world.max(has_manifest(path / name) ? 1.0 : 0.0) > 0.0) faults += "\n  " + one_line(fault);
  }
  world.agree([&] {
    if (!faults.empty()) usage_error("{}: none of its checkpoints can be used:{}", path.string(), Lines{faults});
  });
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
    piece = {begin, piece.values.stretch(begin, end - begin)};
    if (begin == end) array.pieces.clear();
  }
  return arrays;
}

std::string piece_name(const StateArray& array, const StateArray::Piece& piece) {
  const std::int64_t end = piece.begin + piece.values.size();
  const Split& slice = array.slice;
  if (!slice.has_all()) {
    return fmt::format("{}[{}:{}:{}:{}:{}]", array.name, piece.begin, end, slice.first, slice.run, slice.stride);
  }
  if (piece.begin == 0 && end == slice.run) return array.name;
  return fmt::format("{}[{}:{}]", array.name, piece.begin, end);
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
  std::vector<std::int64_t> numbers = {};  ///< See piece_name().
};

/// Numbers of at least 0 with colons between them. Nothing for any other text.
std::optional<std::vector<std::int64_t>> numbers_in(std::string_view text) {
  std::vector<std::int64_t> numbers;
  while (true) {
    std::int64_t& number = numbers.emplace_back();
    const auto [rest, failed] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (failed != std::errc{} || number < 0) return std::nullopt;
    text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
    if (text.empty()) return numbers;
    if (text.front() != ':') return std::nullopt;
    text.remove_prefix(1);
  }
}

PieceName parse_piece_name(const std::string& name) {
  const std::size_t bracket = name.rfind('[');
  if (bracket == std::string::npos || name.back() != ']') return {name};
  const std::string_view inside = std::string_view(name).substr(bracket + 1, name.size() - bracket - 2);
  const std::optional<std::vector<std::int64_t>> numbers = numbers_in(inside);
  if (!numbers || (numbers->size() != 2 && numbers->size() != 5)) {
    usage_error("'{:.80}' names no piece of an array", name);
  }
  return {name.substr(0, bracket), *numbers};
}

/// The slice of an array of this shape to which a piece with `count` elements belongs. Empty if the array does not have
/// all elements of the piece.
std::optional<Split> slice_of(const PieceName& piece, const Shape& shape, std::int64_t count) {
  Split slice = Split::none(shape);
  const std::int64_t size = slice.run;
  const std::int64_t last = (piece.numbers.empty() ? 0 : piece.numbers[0]) + count - 1;
  if (piece.numbers.size() == 5) slice = {shape, piece.numbers[2], piece.numbers[3], piece.numbers[4]};
  if (count < 1 || last >= size || slice.run < 1 || slice.stride < slice.run || slice.first > size) return std::nullopt;
  if (last / slice.run > size / slice.stride) return std::nullopt;
  if (slice.first + last / slice.run * slice.stride + last % slice.run >= size) return std::nullopt;
  return slice;
}

std::string lower_case(std::string text) {
  for (char& c : text) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return text;
}

}  // namespace

CheckpointReader::CheckpointReader(const Checkpoint& checkpoint) : manifest_(checkpoint.manifest) {
  for (const ArrayInfo& array : manifest_.arrays) arrays_[array.name] = &array;
  for (const CheckpointFile& file : manifest_.files) {
    const fs::path path = checkpoint.path / file.name;
    if (const std::size_t bytes = MappedFile(path).size(); bytes != file.bytes) {
      usage_error("{}: {} bytes in place of {}", path.string(), bytes, file.bytes);
    }
    const SafetensorsFile& opened = files_.emplace_back(path);
    for (const auto& [name, tensor] : opened.tensors()) {
      const PieceName piece = parse_piece_name(name);
      const std::int64_t begin = piece.numbers.empty() ? 0 : piece.numbers[0];
      const std::int64_t count = element_count(tensor.shape);
      const auto info = arrays_.find(piece.array);
      const auto slice = info == arrays_.end() ? std::nullopt : slice_of(piece, info->second->shape, count);
      if (!slice || lower_case(name_of(tensor.type)) != info->second->dtype) {
        usage_error("{}: '{}' fits no array of the manifest", opened.name(), name);
      }
      stored_[piece.array].push_back(
          {static_cast<int>(files_.size()) - 1, *slice, begin, count, tensor.data, size_of(tensor.type)});
    }
  }
  for (const ArrayInfo& array : manifest_.arrays) {
    const std::int64_t copies = array.placement == Placement::per_rank ? manifest_.run.mesh.ranks() : 1;
    std::int64_t missing = copies * element_count(array.shape);
    for (const Stored& piece : stored_[array.name]) missing -= piece.count;
    if (missing != 0) usage_error("{}: it lacks {} elements of {}", checkpoint.path.string(), missing, array.name);
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
    if (own && piece.rank != rank % manifest_.run.mesh.ranks()) continue;
    const Split& slice = piece.slice;
    const std::int64_t skipped = std::max<std::int64_t>(0, begin - slice.first) / slice.stride * slice.run;
    const std::int64_t until =
        std::max<std::int64_t>(0, begin + count - slice.first) / slice.stride * slice.run + slice.run;
    slice.visit(std::max(piece.begin, skipped), std::min(piece.begin + piece.count, until),
                [&](std::int64_t at, std::int64_t in_whole, std::int64_t elements) {
                  const std::int64_t first = std::max(begin, in_whole);
                  const std::int64_t last = std::min(begin + count, in_whole + elements);
                  if (first >= last) return;
                  const auto element = static_cast<std::int64_t>(piece.element_bytes);
                  take(first - begin, piece.data + (at - piece.begin + first - in_whole) * element,
                       static_cast<std::size_t>((last - first) * element));
                  missing -= last - first;
                });
  }
  if (missing != 0) fail("the checkpoint lacks {} of {} elements of {}", missing, count, array);
}

namespace {

/// Copies values as they are stored. `widens`: they are bf16 and become f32.
void copy_values(void* to, const std::uint8_t* from, std::size_t bytes, bool widens) {
  if (!widens) {
    std::memcpy(to, from, bytes);
    return;
  }
  for (std::size_t i = 0; i < bytes / sizeof(Bf16); ++i) {
    Bf16 narrow{};
    std::memcpy(&narrow, from + i * sizeof(narrow), sizeof(narrow));
    const float wide = to_float(narrow);
    std::memcpy(static_cast<char*>(to) + i * sizeof(wide), &wide, sizeof(wide));
  }
}

}  // namespace

std::map<std::string, std::pair<Shape, std::vector<float>>> CheckpointReader::parameters() const {
  constexpr std::string_view kWeight = "weight/";
  std::map<std::string, std::pair<Shape, std::vector<float>>> parameters;
  for (const ArrayInfo& array : manifest_.arrays) {
    if (array.name.rfind(kWeight, 0) != 0) continue;
    const std::string name = array.name.substr(kWeight.size());
    const auto master = arrays_.find("master/" + name);
    const ArrayInfo& source = master != arrays_.end() ? *master->second : array;
    const bool narrow = source.dtype == ddptrain::name_of(DType::bf16);
    if (!narrow && source.dtype != ddptrain::name_of(DType::f32)) fail("{} is {}, not f32", source.name, source.dtype);
    std::vector<float> values(static_cast<std::size_t>(element_count(source.shape)));
    read(source.name, 0, element_count(source.shape), 0,
         [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
           copy_values(values.data() + at, data, bytes, narrow);
         });
    parameters[name] = {source.shape, std::move(values)};
  }
  return parameters;
}

namespace {

using StoredArrays = std::map<std::string, const ArrayInfo*>;

StoredArrays stored_arrays(const Checkpoint& checkpoint) {
  StoredArrays stored;
  for (const ArrayInfo& array : checkpoint.manifest.arrays) stored[array.name] = &array;
  return stored;
}

/// Whether values of the stored array become those of `array` by widening.
bool widens(const ArrayInfo& stored, const StateArray& array) {
  return stored.dtype == name_of(DType::bf16) && array.dtype == DType::f32;
}

/// The array that has the values of `array`: the one of its name. For master weights it may be that of the weights, if
/// the checkpoint has no others. Null: there is none.
const ArrayInfo* source_of(const StoredArrays& stored, const StateArray& array) {
  constexpr std::string_view kMaster = "master/";
  auto found = stored.find(array.name);
  if (found == stored.end() && array.name.starts_with(kMaster)) {
    found = stored.find("weight/" + array.name.substr(kMaster.size()));
  }
  return found == stored.end() ? nullptr : found->second;
}

/// The first difference between the arrays of a checkpoint and the arrays that a run needs.
void check_arrays(const Checkpoint& checkpoint, const std::vector<StateArray>& needed, bool whole) {
  const StoredArrays stored = stored_arrays(checkpoint);
  StoredArrays unused = stored;
  const std::string path = checkpoint.path.string();
  for (const StateArray& array : needed) {
    const ArrayInfo* const info = source_of(stored, array);
    if (info == nullptr) usage_error("{} has no {}: it is of another model, optimizer or precision", path, array.name);
    const bool same_type = info->dtype == name_of(array.dtype) || widens(*info, array);
    if (info->shape != array.shape() || !same_type) {
      usage_error("{} has {} as {} [{}], and this run needs {} [{}]: it is of another shape or precision", path,
                  array.name, info->dtype, fmt::join(info->shape, ", "), name_of(array.dtype),
                  fmt::join(array.shape(), ", "));
    }
    unused.erase(info->name);
  }
  if (unused.empty() || !whole) return;
  usage_error("{} has {}, which this run does not: it is of another model, optimizer or precision", path,
              unused.begin()->first);
}

}  // namespace

void restore_arrays(const Checkpoint& checkpoint, const TrainingState& state, const World& world, Device& device,
                    bool whole) {
  world.agree([&] {
    const std::vector<StateArray> arrays = state.arrays();
    check_arrays(checkpoint, arrays, whole);
    const StoredArrays stored = stored_arrays(checkpoint);
    const CheckpointReader reader(checkpoint);
    for (const StateArray& array : arrays) {
      const ArrayInfo& source = *source_of(stored, array);
      for (const StateArray::Piece& piece : array.pieces) {
        const auto element = static_cast<std::int64_t>(size_of(array.dtype));
        std::vector<std::uint8_t> values(piece.values.bytes());
        const std::int64_t end = piece.begin + piece.values.size();
        array.slice.visit(piece.begin, end, [&](std::int64_t in_slice, std::int64_t in_whole, std::int64_t count) {
          const auto copy = [&](std::int64_t at, const std::uint8_t* data, std::size_t bytes) {
            copy_values(values.data() + (in_slice - piece.begin + at) * element, data, bytes, widens(source, array));
          };
          reader.read(source.name, in_whole, count, world.rank(), copy);
        });
        device.copy_to_device(piece.values.data, values.data(), values.size());
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
  for (const MetricSums& of_rank : progress.rank_sums) sums[0] = sums[0] + of_rank;
  return sums;
}

}  // namespace ddptrain
