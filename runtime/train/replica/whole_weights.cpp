#include "runtime/train/replica/whole_weights.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <set>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr std::int64_t kMostAtOnce = std::int64_t{1} << 22;  // elements that ranks send at once
constexpr const char* kWeight = "weight/";
constexpr const char* kMaster = "master/";

bool begins_with(const std::string& text, const char* start) { return text.rfind(start, 0) == 0; }

/// Rounded to the type of a weight.
std::vector<std::uint8_t> bytes_as(DType dtype, std::span<const float> values) {
  std::vector<std::uint8_t> bytes(values.size() * size_of(dtype));
  if (dtype == DType::f32) {
    std::memcpy(bytes.data(), values.data(), bytes.size());
    return bytes;
  }
  DDP_CHECK(dtype == DType::bf16, "weights of {}", name_of(dtype));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const Bf16 rounded = to_bf16(values[i]);
    std::memcpy(bytes.data() + i * sizeof(rounded), &rounded, sizeof(rounded));
  }
  return bytes;
}

/// The values of an array of weights.
std::vector<float> values_of(const Tensor& weights, Device& device) {
  std::vector<float> values(static_cast<std::size_t>(weights.size()));
  if (weights.dtype == DType::f32) {
    device.copy_to_host(values.data(), weights.data, weights.bytes());
    return values;
  }
  DDP_CHECK(weights.dtype == DType::bf16, "weights of {}", name_of(weights.dtype));
  std::vector<Bf16> narrow(values.size());
  device.copy_to_host(narrow.data(), weights.data, weights.bytes());
  std::ranges::transform(narrow, values.begin(), to_float);
  return values;
}

}  // namespace

WholeWeights::WholeWeights(const Replica& replica, int index, const World& world)
    : world_(world), device_(replica.device()) {
  std::map<std::string, std::int64_t> begin_of;
  for (const ParameterSpec& spec : replica.model().parameters_of_all_stages()) {
    parameters_.push_back({spec.name, spec.slice().whole, size_});
    begin_of[spec.name] = size_;
    size_ += element_count(parameters_.back().shape);
  }
  std::set<std::string> has_master;
  const std::vector<StateArray> arrays = replica.state().arrays();
  for (const StateArray& array : arrays) {
    if (begins_with(array.name, kMaster)) has_master.insert(array.name.substr(std::strlen(kMaster)));
  }
  std::vector<Stretch> mine;
  for (const StateArray& array : arrays) {
    const bool is_master = begins_with(array.name, kMaster);
    if (!is_master && !begins_with(array.name, kWeight)) continue;
    const std::string name = array.name.substr(array.name.find('/') + 1);
    const bool is_first = array.placement == Placement::sharded || index == 0;
    const bool is_source = is_master == has_master.contains(name) && is_first && !array.is_copy;
    for (const StateArray::Piece& piece : array.pieces) {
      Piece& kept = pieces_.emplace_back(Piece{piece.values, {}, is_source});
      const std::int64_t end = piece.begin + piece.values.size();
      array.slice.visit(piece.begin, end, [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
        kept.runs.push_back({at - piece.begin, begin_of.at(name) + in_whole, count});
        if (is_source) mine.push_back({kept.runs.back().in_whole, count});
      });
    }
  }
  std::int64_t all = 0;
  for (const std::string& of_rank :
       world.all_gather({reinterpret_cast<const char*>(mine.data()), mine.size() * sizeof(Stretch)})) {
    std::vector<Stretch>& stretches = sources_.emplace_back(of_rank.size() / sizeof(Stretch));
    if (!stretches.empty()) std::memcpy(stretches.data(), of_rank.data(), of_rank.size());
    for (const Stretch& stretch : stretches) all += stretch.count;
  }
  DDP_CHECK(all == size_, "the ranks have {} weights of {}", all, size_);
}

std::vector<WholeWeights::Stretch> WholeWeights::sources_within(int rank, std::int64_t begin, std::int64_t end) const {
  std::vector<Stretch> within;
  for (const Stretch& stretch : sources_[static_cast<std::size_t>(rank)]) {
    const std::int64_t first = std::max(begin, stretch.begin);
    const std::int64_t last = std::min(end, stretch.begin + stretch.count);
    if (first < last) within.push_back({first, last - first});
  }
  return within;
}

/// The runs of the piece within [begin, end) of the array. They follow each other in the piece without gaps.
std::vector<WholeWeights::Run> WholeWeights::runs_within(const Piece& piece, std::int64_t begin, std::int64_t end) {
  std::vector<Run> within;
  for (const Run& run : piece.runs) {
    const std::int64_t first = std::max(begin, run.in_whole);
    const std::int64_t last = std::min(end, run.in_whole + run.count);
    if (first < last) within.push_back({run.at + (first - run.in_whole), first, last - first});
  }
  return within;
}

/// This rank's source values in [begin, end), in the order of sources_within().
std::vector<float> WholeWeights::own_sources(std::int64_t begin, std::int64_t end) const {
  std::vector<float> values;
  for (const Piece& piece : pieces_) {
    if (!piece.is_source) continue;
    const std::vector<Run> runs = runs_within(piece, begin, end);
    if (runs.empty()) continue;
    const Tensor from = piece.values.stretch(runs.front().at, runs.back().at + runs.back().count - runs.front().at);
    const std::vector<float> more = values_of(from, device_);
    values.insert(values.end(), more.begin(), more.end());
  }
  return values;
}

/// Those of all ranks, rank by rank. Ranks but the first need none.
std::vector<float> WholeWeights::all_sources(std::int64_t begin, std::int64_t end) const {
  const bool first_has_all = std::ranges::all_of(sources_.begin() + 1, sources_.end(), &std::vector<Stretch>::empty);
  return first_has_all ? own_sources(begin, end) : world_.all_gather(own_sources(begin, end));
}

void WholeWeights::read(std::int64_t begin, std::int64_t count, std::span<float> values) const {
  device_.finish_unfinished();
  device_.synchronize();
  for (std::int64_t at = begin; at < begin + count; at += kMostAtOnce) {
    const std::int64_t end = std::min(at + kMostAtOnce, begin + count);
    const std::vector<float> all = all_sources(at, end);
    if (world_.rank() != 0) continue;
    auto from = all.begin();
    for (int rank = 0; rank < world_.size(); ++rank) {
      for (const Stretch& stretch : sources_within(rank, at, end)) {
        std::copy_n(from, stretch.count, values.begin() + (stretch.begin - begin));
        from += stretch.count;
      }
    }
  }
}

void WholeWeights::write(std::int64_t begin, std::int64_t count, std::span<const float> values) const {
  device_.finish_unfinished();
  device_.synchronize();
  std::vector<float> part;
  for (std::int64_t at = begin; at < begin + count; at += kMostAtOnce) {
    const std::int64_t size = std::min(kMostAtOnce, begin + count - at);
    part.resize(static_cast<std::size_t>(size));
    if (world_.rank() == 0) std::copy_n(values.begin() + (at - begin), size, part.begin());
    if (world_.size() > 1) world_.broadcast(part.data(), part.size() * sizeof(float), 0);
    set(at, part);
  }
}

/// Sets this rank's elements among `values`, which begin at `begin` of the array.
void WholeWeights::set(std::int64_t begin, std::span<const float> values) const {
  const std::int64_t end = begin + static_cast<std::int64_t>(values.size());
  for (const Piece& piece : pieces_) {
    const std::vector<Run> runs = runs_within(piece, begin, end);
    if (runs.empty()) continue;
    std::vector<float> part;
    for (const Run& run : runs) {
      const auto from =
          values.subspan(static_cast<std::size_t>(run.in_whole - begin), static_cast<std::size_t>(run.count));
      part.insert(part.end(), from.begin(), from.end());
    }
    const std::vector<std::uint8_t> bytes = bytes_as(piece.values.dtype, part);
    const Tensor to = piece.values.stretch(runs.front().at, static_cast<std::int64_t>(part.size()));
    device_.copy_to_device(to.data, bytes.data(), bytes.size());
  }
}

}  // namespace ddptrain
