#include "runtime/train/step/store/parameter_arena.h"

#include <algorithm>
#include <future>

#include "runtime/core/error.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/step/store/initial_values.h"

namespace ddptrain {
namespace {

constexpr std::size_t kRing = 3;  // one unit computes gradients, the next may begin, and a third is being reduced

DType kept_type(std::optional<DType> asked, DType compute) {
  return asked == DType::bf16 ? compute : asked.value_or(compute);
}

/// Split parameters need whole chunks, because some of a stage's parameters are copies and do not count in the norm.
bool needs_whole_chunks(const std::vector<ParameterSpec>& specs, const ArenaOptions& options) {
  const auto is_split = [](const ParameterSpec& spec) { return spec.split.has_value(); };
  return options.whole_chunks || std::ranges::any_of(specs, is_split);
}

}  // namespace

ParameterArena::ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Device& device,
                               Communicator& communicator)
    : specs_(std::move(specs)),
      units_(options.units),
      zero_(communicator.size() == 1 ? Zero::nothing : options.zero),
      plan_(plan_buckets(
          specs_, size_of(kept_type(options.gradient_type, device.dtype())), options.bucket_bytes,
          zero_ >= Zero::gradients ? 0 : options.last_bucket_bytes, communicator.size(),
          needs_whole_chunks(specs_, options) && zero_ >= Zero::state ? kChunkElements : kParameterAlignment,
          zero_ >= Zero::gradients ? options.units : std::vector<Unit>{})),
      gradient_places_(zero_ >= Zero::gradients ? shared_places(plan_, specs_, options.units, kRing)
                                                : separate_places(plan_)),
      weight_places_(zero_ >= Zero::weights ? shared_places(plan_, specs_, options.units, kRing)
                                            : separate_places(plan_)),
      device_(device),
      communicator_(communicator),
      compute_(device.dtype()),
      gradient_type_(kept_type(options.gradient_type, compute_)),
      master_type_(master_dtype(device.precision())),
      partition_(zero_ >= Zero::state ? Partition{communicator.size(), communicator.rank()} : Partition{}) {
  check_identities(specs_);
  DDP_CHECK(gradient_type_ == compute_ || gradient_type_ == master_type_, "gradients of {} beside weights of {}",
            name_of(gradient_type_), name_of(compute_));
  const std::size_t part = static_cast<std::size_t>(plan_.size / partition_.parts);
  const std::size_t state_bytes = part * size_of(master_type_);
  const std::size_t weight_bytes = static_cast<std::size_t>(weight_places_.size) * size_of(compute_);
  const std::size_t gradient_bytes = static_cast<std::size_t>(gradient_places_.size) * size_of(gradient_type_);
  const bool sharded = partition_.parts > 1;
  if (!(zero_ == Zero::state && options.by_peers && allocate_for_peers(weight_bytes, gradient_bytes))) {
    weights_ = sharded ? communicator.allocate(weight_bytes) : device.allocate(weight_bytes);
    gradients_ = communicator.allocate(gradient_bytes);
  }
  if (zero_ >= Zero::gradients) own_gradients_ = device.allocate(part * size_of(gradient_type_));
  if (zero_ >= Zero::weights) own_weights_ = communicator.allocate(part * size_of(compute_));
  if (master_type_ != compute_) master_ = device.allocate(state_bytes);
  DDP_CHECK(options.optimizer_slots <= kMostOptimizerSlots, "{} slots of an optimizer", options.optimizer_slots);
  for (std::size_t i = 0; i < options.optimizer_slots; ++i) slots_.push_back(device.allocate(state_bytes));
  make_chunks();
  if (needs_whole_chunks(specs_, options)) number_chunks();
}

bool ParameterArena::allocate_for_peers(std::size_t weight_bytes, std::size_t gradient_bytes) {
  if (partition_.parts > PeerInboxes::kMaxRanks) return false;
  PeerMemory weights = communicator_.allocate_for_peers(weight_bytes);
  if (weights.of_rank.empty()) return false;
  PeerMemory gradients = communicator_.allocate_for_peers(gradient_bytes);
  if (gradients.of_rank.empty()) return false;
  weights_ = std::move(weights.mine);
  peer_weights_ = std::move(weights.of_rank);
  gradients_ = std::move(gradients.mine);
  peer_gradients_ = std::move(gradients.of_rank);
  return true;
}

void ParameterArena::make_chunks() {
  std::vector<UpdateChunk> chunks;
  for (std::size_t bucket = 0; bucket < plan_.buckets.size(); ++bucket) {
    first_chunk_.push_back(static_cast<std::uint32_t>(chunks.size()));
    const std::vector<UpdateChunk> more = chunks_of(bucket, plan_, specs_, partition_);
    chunks.insert(chunks.end(), more.begin(), more.end());
  }
  first_chunk_.push_back(static_cast<std::uint32_t>(chunks.size()));
  chunks_ = device_.allocate(chunks.size() * sizeof(UpdateChunk));
  device_.copy_to_device(chunks_.data(), chunks.data(), chunks.size() * sizeof(UpdateChunk));
}

void ParameterArena::number_chunks() {
  std::vector<std::uint32_t> first;
  for (const ParameterSpec& spec : specs_) {
    first.push_back(spec.is_copy ? ReductionOps::kNotCounted : static_cast<std::uint32_t>(square_count_));
    square_count_ += (spec.size() + kChunkElements - 1) / kChunkElements;
  }
  first_square_ = device_.allocate(first.size() * sizeof(std::uint32_t));
  device_.copy_to_device(first_square_.data(), first.data(), first_square_.bytes());
}

std::size_t ParameterArena::state_bytes() const { return master_.bytes() + total_bytes(slots_); }

std::vector<MemoryUse> ParameterArena::memory() const {
  return {{"weights", weights_.bytes() + own_weights_.bytes()},
          {"gradients", gradients_.bytes() + own_gradients_.bytes()},
          {"masters", master_.bytes()},
          {"optimizer", total_bytes(slots_)},
          {"tables", chunks_.bytes() + first_square_.bytes()}};
}

std::vector<Tensor> ParameterArena::views(const Buffer& buffer, DType dtype, const BucketPlaces& places) const {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const std::size_t bucket = plan_.bucket_of[i];
    const std::int64_t begin = places.begin[bucket] + plan_.begin[i] - plan_.buckets[bucket].begin;
    tensors.push_back(buffer.stretch(dtype, begin, element_count(specs_[i].shape)));
    tensors.back().shape = specs_[i].shape;
  }
  return tensors;
}

std::vector<Tensor> ParameterArena::weights() const { return views(weights_, compute_, weight_places_); }
std::vector<Tensor> ParameterArena::gradients() const { return views(gradients_, gradient_type_, gradient_places_); }

Tensor ParameterArena::bucket_weights(std::size_t bucket) const {
  return weights_.stretch(compute_, weight_places_.begin.at(bucket), plan_.buckets[bucket].size);
}

Tensor ParameterArena::bucket_gradients(std::size_t bucket) const {
  return gradients_.stretch(gradient_type_, gradient_places_.begin.at(bucket), plan_.buckets[bucket].size);
}

Tensor ParameterArena::part_of(const Tensor& bucket) const {
  return partition_.parts > 1 ? own_part(communicator_, bucket) : bucket;
}

Tensor ParameterArena::reduced_gradients(std::size_t bucket) const {
  return own_gradients_ ? kept_part(own_gradients_, gradient_type_, bucket) : part_of(bucket_gradients(bucket));
}

Tensor ParameterArena::own_weights(std::size_t bucket) const {
  return own_weights_ ? kept_part(own_weights_, compute_, bucket) : part_of(bucket_weights(bucket));
}

std::vector<Tensor> ParameterArena::gradient_parts(std::size_t bucket) const {
  const Tensor mine = reduced_gradients(bucket);
  const std::ptrdiff_t offset = mine.as<const char>() - static_cast<const char*>(gradients_.data());
  std::vector<Tensor> parts;
  for (void* gradients : peer_gradients_) {
    parts.push_back({static_cast<char*>(gradients) + offset, gradient_type_, mine.shape});
  }
  return parts;
}

std::array<void*, PeerInboxes::kMaxRanks - 1> ParameterArena::peer_weights(std::size_t bucket) const {
  const Tensor mine = part_of(bucket_weights(bucket));
  const std::ptrdiff_t offset = mine.as<const char>() - static_cast<const char*>(weights_.data());
  std::array<void*, PeerInboxes::kMaxRanks - 1> weights = {};
  const auto ranks = static_cast<int>(peer_weights_.size());
  for (int i = 1; i < ranks; ++i) {
    const int peer = (communicator_.rank() + i) % ranks;
    weights.at(static_cast<std::size_t>(i - 1)) =
        static_cast<char*>(peer_weights_[static_cast<std::size_t>(peer)]) + offset;
  }
  return weights;
}

Tensor ParameterArena::state(const Buffer& buffer, std::size_t bucket) const {
  return buffer ? kept_part(buffer, master_type_, bucket) : Tensor{};
}

Tensor ParameterArena::kept_part(const Buffer& buffer, DType dtype, std::size_t bucket) const {
  const Bucket& b = plan_.buckets.at(bucket);
  return buffer.stretch(dtype, b.begin / partition_.parts, b.size / partition_.parts);
}

Tensor ParameterArena::master(std::size_t bucket) const {
  return master_ ? state(master_, bucket) : own_weights(bucket);
}

UpdateSlice ParameterArena::update_slice(std::size_t bucket) const {
  UpdateSlice slice;
  const std::uint32_t first_chunk = first_chunk_.at(bucket);
  slice.chunks = static_cast<const UpdateChunk*>(chunks_.data()) + first_chunk;
  slice.chunk_count = first_chunk_.at(bucket + 1) - first_chunk;
  slice.weight_type = compute_;
  slice.gradient_type = gradient_type_;
  slice.weights = own_weights(bucket).data;
  slice.master = master(bucket).data;
  for (std::size_t i = 0; i < slots_.size(); ++i) slice.state[i] = state(slots_[i], bucket).data;
  slice.gradients = reduced_gradients(bucket).data;
  return slice;
}

Buffer ParameterArena::allocate_staging(DType dtype) const {
  std::int64_t largest = 0;
  for (const Bucket& bucket : plan_.buckets) largest = std::max(largest, bucket.size);
  return device_.allocate(dtype, {largest});
}

/// Rank 0 makes the values of a bucket while it copies and broadcasts the bucket before. It keeps the host memory of
/// both: the first use of new memory takes as long as making the values.
void ParameterArena::initialise(std::uint64_t seed, int rank) {
  const Stream stream = device_.compute_stream();
  const Buffer staging = allocate_staging(DType::f32);
  const std::size_t mine = rank == 0 ? plan_.buckets.size() : 0;
  std::array<std::vector<float>, 2> made;
  const auto start = [&](std::size_t bucket) {
    return std::async(std::launch::async, [this, bucket, seed, &to = made[bucket % 2]] {
      make_initial_values(specs_, plan_, plan_.buckets[bucket], seed, to);
    });
  };
  std::future<void> next;
  if (mine > 0) next = start(0);
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Tensor values = staging.view(DType::f32, {plan_.buckets[b].size});
    if (b < mine) {
      next.get();
      if (b + 1 < mine) next = start(b + 1);
      device_.copy_to_device(values.data, made[b % 2].data(), values.bytes());
    }
    communicator_.wait(communicator_.broadcast(values, 0, stream));
    if (own_weights_) {
      device_.convert(part_of(values), own_weights(b), stream);
    } else {
      device_.convert(values, bucket_weights(b), stream);
    }
    if (master_.data() != nullptr) device_.convert(part_of(values), master(b), stream);
  }
  for (const Buffer& slot : slots_) device_.zero(slot.data(), slot.bytes(), stream);
  device_.synchronize();
}

void ParameterArena::visit(const std::function<void(const ParameterSpec&, const Tensor&)>& show) const {
  const bool sharded = partition_.parts > 1;
  const bool gathers = sharded && (master_ || own_weights_);
  const Stream stream = device_.compute_stream();
  const Buffer staging = gathers ? allocate_staging(master_type_) : Buffer{};
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    Tensor values = sharded ? bucket_weights(b) : master(b);
    if (gathers) {
      values = staging.view(master_type_, {bucket.size});
      device_.convert(master(b), part_of(values), stream);
      communicator_.wait(communicator_.all_gather(values, stream));
    }
    for (std::size_t i = bucket.first_parameter; i < bucket.first_parameter + bucket.parameter_count; ++i) {
      show(specs_[i], values.stretch(plan_.begin[i] - bucket.begin, specs_[i].size()));
    }
  }
}

/// An array of the optimizer's state.
StateArray ParameterArena::array_of(const std::string& kind, std::size_t parameter, const Buffer& buffer,
                                    DType dtype) const {
  const ParameterSpec& spec = specs_[parameter];
  const Bucket& bucket = plan_.buckets[plan_.bucket_of[parameter]];
  const std::int64_t part = bucket.size / partition_.parts;
  const std::int64_t part_begin = bucket.begin + partition_.index * part;
  const std::int64_t origin = plan_.begin[parameter];
  const std::int64_t begin = std::max(origin, part_begin);
  const std::int64_t end = std::min(origin + spec.size(), part_begin + part);
  const Placement placement = partition_.parts > 1 ? Placement::sharded : Placement::replicated;
  StateArray array{fmt::format("{}/{}", kind, spec.name), spec.part(), dtype, placement, {}, spec.is_copy};
  if (begin < end) {
    const std::int64_t place = bucket.begin / partition_.parts + (begin - part_begin);
    array.pieces.push_back({begin - origin, buffer.stretch(dtype, place, end - begin)});
  }
  return array;
}

std::vector<StateArray> ParameterArena::state() const {
  std::vector<StateArray> arrays;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const ParameterSpec& spec = specs_[i];
    if (own_weights_) {
      arrays.push_back(array_of("weight", i, own_weights_, compute_));
    } else {
      const Tensor weight = weights_.stretch(compute_, plan_.begin[i], spec.size());
      arrays.push_back(
          {"weight/" + spec.name, spec.part(), compute_, Placement::replicated, {{0, weight}}, spec.is_copy});
    }
    if (master_) arrays.push_back(array_of("master", i, master_, master_type_));
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      arrays.push_back(array_of(fmt::format("slot_{}", slot), i, slots_[slot], master_type_));
    }
  }
  return arrays;
}

}  // namespace ddptrain
