#include "runtime/train/step/store/parameter_arena.h"

#include <algorithm>
#include <future>

#include "runtime/core/bf16.h"
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

float rounded_to_bf16(float value) { return to_float(to_bf16(value)); }

std::size_t gradient_size(const ArenaOptions& options, const Device& device) {
  return size_of(kept_type(options.gradient_type, device.dtype()));
}

std::optional<StagePlan> stage_plan_of(const std::vector<ParameterSpec>& specs, const ArenaOptions& options, Zero zero,
                                       const Device& device, int world_size) {
  const std::vector<ParameterSpec>& all = options.of_all_stages;
  if (all.size() <= specs.size() || zero != Zero::nothing || needs_whole_chunks(specs, options)) return std::nullopt;
  const auto first = std::ranges::find(all, specs.front().name, &ParameterSpec::name);
  DDP_CHECK(all.end() - first >= std::ssize(specs), "{} is not among the parameters of all stages", specs.front().name);
  return StagePlan{
      plan_buckets(all, gradient_size(options, device), options.bucket_bytes, options.last_bucket_bytes, world_size),
      static_cast<std::size_t>(first - all.begin())};
}

BucketPlan plan_of(const std::vector<ParameterSpec>& specs, const ArenaOptions& options, Zero zero,
                   const Device& device, int world_size) {
  const bool by_units = zero >= Zero::gradients;
  const bool whole_chunks = needs_whole_chunks(specs, options) && zero >= Zero::state;
  return plan_buckets(
      specs, gradient_size(options, device), options.bucket_bytes, by_units ? 0 : options.last_bucket_bytes, world_size,
      whole_chunks ? kChunkElements : kParameterAlignment, by_units ? options.units : std::vector<Unit>{});
}

}  // namespace

ParameterArena::ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Device& device,
                               Communicator& communicator)
    : specs_(std::move(specs)),
      units_(options.units),
      zero_(communicator.size() == 1 ? Zero::nothing : options.zero),
      stage_plan_(stage_plan_of(specs_, options, zero_, device, communicator.size())),
      plan_(stage_plan_ ? plan_of_stage(*stage_plan_, specs_, gradient_size(options, device), communicator.size())
                        : plan_of(specs_, options, zero_, device, communicator.size())),
      gradient_places_(zero_ >= Zero::gradients ? shared_places(plan_, specs_, options.units, kRing)
                                                : separate_places(plan_)),
      weight_places_(zero_ >= Zero::weights ? shared_places(plan_, specs_, options.units, kRing)
                                            : separate_places(plan_)),
      device_(device),
      communicator_(communicator),
      compute_(device.dtype()),
      gradient_type_(kept_type(options.gradient_type, compute_)),
      master_type_(master_dtype(device.precision())),
      slot_type_(options.bf16_moments ? DType::bf16 : master_type_),
      has_masters_(options.has_masters),
      state_on_host_(options.state_on_host),
      sharding_(zero_ >= Zero::state ? Sharding{communicator.size(), communicator.rank()} : Sharding{}) {
  check_identities(specs_);
  DDP_CHECK(gradient_type_ == compute_ || gradient_type_ == master_type_, "gradients of {} beside weights of {}",
            name_of(gradient_type_), name_of(compute_));
  const std::size_t shard = static_cast<std::size_t>(plan_.size / sharding_.shards);
  const std::size_t weight_bytes = static_cast<std::size_t>(weight_places_.size) * size_of(compute_);
  const std::size_t gradient_bytes = static_cast<std::size_t>(gradient_places_.size) * size_of(gradient_type_);
  const bool sharded = sharding_.shards > 1;
  if (!(zero_ == Zero::state && options.by_peers && allocate_for_peers(weight_bytes, gradient_bytes))) {
    weights_ = sharded ? communicator.allocate(weight_bytes) : device.allocate(weight_bytes);
    gradients_ = communicator.allocate(gradient_bytes);
  }
  if (zero_ >= Zero::gradients) own_gradients_ = device.allocate(shard * size_of(gradient_type_));
  if (zero_ >= Zero::weights) own_weights_ = communicator.allocate(shard * size_of(compute_));
  if (has_masters_ && master_type_ != compute_) master_ = allocate_state(shard * size_of(master_type_));
  DDP_CHECK(options.optimizer_slots <= kMostOptimizerSlots, "{} slots of an optimizer", options.optimizer_slots);
  for (std::size_t i = 0; i < options.optimizer_slots; ++i) {
    slots_.push_back(allocate_state(shard * size_of(slot_type_)));
  }
  make_chunks();
  if (options.bf16_moments || !has_masters_) list_rounded();
  if (needs_whole_chunks(specs_, options)) number_chunks();
}

Buffer ParameterArena::allocate_state(std::size_t bytes) const {
  return state_on_host_ ? device_.allocate_pinned(bytes) : device_.allocate(bytes);
}

bool ParameterArena::allocate_for_peers(std::size_t weight_bytes, std::size_t gradient_bytes) {
  if (sharding_.shards > PeerInboxes::kMaxRanks) return false;
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
    const std::vector<UpdateChunk> more = chunks_of(bucket, plan_, specs_, sharding_);
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
  first.push_back(static_cast<std::uint32_t>(square_count_));
  first_square_ = device_.allocate(first.size() * sizeof(std::uint32_t));
  device_.copy_to_device(first_square_.data(), first.data(), first_square_.bytes());
}

/// The update finds out which elements of the whole parameters it rounds.
void ParameterArena::list_rounded() {
  std::vector<RoundedParameter> rounded;
  for (const ParameterSpec& spec : specs_) {
    RoundedParameter& parameter = rounded.emplace_back(RoundedParameter{spec.identity()});
    const Split slice = spec.slice();
    if (slice.has_all()) continue;
    parameter.run = static_cast<std::uint32_t>(slice.run);
    parameter.first = static_cast<std::uint64_t>(slice.first);
    parameter.stride = static_cast<std::uint64_t>(slice.stride);
  }
  rounded_ = device_.allocate(rounded.size() * sizeof(RoundedParameter));
  device_.copy_to_device(rounded_.data(), rounded.data(), rounded_.bytes());
}

std::size_t ParameterArena::state_bytes() const { return master_.bytes() + total_bytes(slots_); }

std::vector<MemoryUse> ParameterArena::memory() const {
  return {{"weights", weights_.bytes() + own_weights_.bytes()},
          {"gradients", gradients_.bytes() + own_gradients_.bytes()},
          {"masters", master_.bytes(), state_on_host_},
          {"optimizer", total_bytes(slots_), state_on_host_},
          {"tables", chunks_.bytes() + rounded_.bytes() + first_square_.bytes()}};
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

Tensor ParameterArena::shard_of(const Tensor& bucket) const {
  return sharding_.shards > 1 ? own_shard(communicator_, bucket) : bucket;
}

Tensor ParameterArena::reduced_gradients(std::size_t bucket) const {
  return own_gradients_ ? shard_in(own_gradients_, gradient_type_, bucket) : shard_of(bucket_gradients(bucket));
}

Tensor ParameterArena::own_weights(std::size_t bucket) const {
  return own_weights_ ? shard_in(own_weights_, compute_, bucket) : shard_of(bucket_weights(bucket));
}

std::vector<Tensor> ParameterArena::gradient_shards(std::size_t bucket) const {
  const Tensor mine = reduced_gradients(bucket);
  const std::ptrdiff_t offset = mine.as<const char>() - static_cast<const char*>(gradients_.data());
  std::vector<Tensor> shards;
  for (void* gradients : peer_gradients_) {
    shards.push_back({static_cast<char*>(gradients) + offset, gradient_type_, mine.shape});
  }
  return shards;
}

std::array<void*, PeerInboxes::kMaxRanks - 1> ParameterArena::peer_weights(std::size_t bucket) const {
  const Tensor mine = shard_of(bucket_weights(bucket));
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

Tensor ParameterArena::shard_in(const Buffer& buffer, DType dtype, std::size_t bucket) const {
  const Bucket& b = plan_.buckets.at(bucket);
  return buffer.stretch(dtype, shard_place(b, sharding_), b.size / sharding_.shards);
}

Tensor ParameterArena::master(std::size_t bucket) const {
  return master_ ? shard_in(master_, master_type_, bucket) : own_weights(bucket);
}

std::size_t ParameterArena::buckets_per_slice() const {
  return sharding_.shards == 1 || own_weights_ ? plan_.buckets.size() : 1;
}

UpdateSlice ParameterArena::update_slice(std::size_t first, std::size_t buckets) const {
  UpdateSlice slice;
  const std::uint32_t first_chunk = first_chunk_.at(first);
  slice.chunks = static_cast<const UpdateChunk*>(chunks_.data()) + first_chunk;
  slice.chunk_count = first_chunk_.at(first + buckets) - first_chunk;
  slice.position = static_cast<std::uint32_t>(shard_place(plan_.buckets[first], sharding_) / kChunkAlignment);
  slice.weight_type = compute_;
  slice.gradient_type = gradient_type_;
  slice.state_type = slot_type_;
  slice.masterless = !has_masters_;
  slice.parameters = static_cast<const RoundedParameter*>(rounded_.data());
  slice.weights = own_weights(first).data;
  slice.master = master(first).data;
  for (std::size_t i = 0; i < slots_.size(); ++i) slice.state[i] = shard_in(slots_[i], slot_type_, first).data;
  slice.gradients = reduced_gradients(first).data;
  return slice;
}

std::int64_t ParameterArena::piece_size() const {
  return device_.kind() == DeviceKind::cpu ? std::int64_t{1} << 20 : std::int64_t{1} << 22;
}

/// Calls work(bucket, begin, size) for pieces of piece_size() elements of all buckets, in order; `begin`: in the
/// bucket.
template <class Work>
void ParameterArena::for_each_piece(const Work& work) const {
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const std::int64_t size = plan_.buckets[b].size;
    for (std::int64_t at = 0; at < size; at += piece_size()) work(b, at, std::min(piece_size(), size - at));
  }
}

/// Without master weights, weights begin with values of bf16.
/// Rank 0 makes the values of a piece while it copies and broadcasts the piece before. It keeps the host memory of
/// both: the first use of new memory takes as long as making the values.
void ParameterArena::initialise(std::uint64_t seed, int rank) {
  struct Piece {
    std::size_t bucket;
    std::int64_t begin;
    std::int64_t size;
  };
  std::vector<Piece> pieces;
  for_each_piece([&](std::size_t b, std::int64_t begin, std::int64_t size) { pieces.push_back({b, begin, size}); });
  const Stream stream = device_.compute_stream();
  const Buffer staging = device_.allocate(DType::f32, {std::min(piece_size(), plan_.size)});
  InitialValues initial(specs_, plan_, seed);
  std::array<std::vector<float>, 2> made;
  const auto start = [&](std::size_t i) {
    return std::async(std::launch::async, [&, i] {
      made[i % 2].resize(static_cast<std::size_t>(pieces[i].size));
      initial.make(plan_.buckets[pieces[i].bucket].begin + pieces[i].begin, made[i % 2]);
      if (!has_masters_) std::ranges::transform(made[i % 2], made[i % 2].begin(), rounded_to_bf16);
    });
  };
  std::future<void> next;
  if (rank == 0) next = start(0);
  for (std::size_t i = 0; i < pieces.size(); ++i) {
    const Tensor values = staging.view(DType::f32, {pieces[i].size});
    if (rank == 0) {
      next.get();
      if (i + 1 < pieces.size()) next = start(i + 1);
      device_.copy_to_device(values.data, made[i % 2].data(), values.bytes());
    }
    communicator_.wait(communicator_.broadcast(values, 0, stream));
    set_values(pieces[i].bucket, pieces[i].begin, values);
  }
  for (const Buffer& slot : slots_) device_.zero(slot.data(), slot.bytes(), stream);
  device_.synchronize();
}

/// Sets the weights that this rank keeps of a bucket, from element `begin` on, in the order of the compute stream.
void ParameterArena::set_values(std::size_t bucket, std::int64_t begin, const Tensor& values) {
  const Stream stream = device_.compute_stream();
  const std::int64_t shard = plan_.buckets[bucket].size / sharding_.shards;
  const std::int64_t shard_begin = sharding_.index * shard;
  if (!own_weights_) device_.convert(values, bucket_weights(bucket).stretch(begin, values.size()), stream);
  const std::int64_t from = std::max(begin, shard_begin);
  const std::int64_t to = std::min(begin + values.size(), shard_begin + shard);
  if (from >= to) return;
  const Tensor mine = values.stretch(from - begin, to - from);
  if (own_weights_) device_.convert(mine, own_weights(bucket).stretch(from - shard_begin, to - from), stream);
  if (master_) device_.convert(mine, master(bucket).stretch(from - shard_begin, to - from), stream);
}

/// The ranks broadcast their shards in turn. Together these take as long as one all-gather, which would need memory for
/// whole buckets.
void ParameterArena::visit(const Visit& show) const {
  const bool sharded = sharding_.shards > 1;
  const bool sends = sharded && (master_ || own_weights_);
  const Stream stream = device_.compute_stream();
  const Buffer staging = sends ? device_.allocate(master_type_, {std::min(piece_size(), plan_.size)}) : Buffer{};
  const auto show_values = [&](std::size_t bucket, std::int64_t begin, const Tensor& values) {
    const std::int64_t from = plan_.buckets[bucket].begin + begin;
    const std::int64_t to = from + values.size();
    const Bucket& of = plan_.buckets[bucket];
    for (std::size_t i = of.first_parameter; i < of.first_parameter + of.parameter_count; ++i) {
      const std::int64_t first = std::max(from, plan_.begin[i]);
      const std::int64_t end = std::min(to, plan_.begin[i] + specs_[i].size());
      if (first < end) show(specs_[i], first - plan_.begin[i], values.stretch(first - from, end - first));
    }
  };
  if (!sends) {
    return for_each_piece([&](std::size_t b, std::int64_t begin, std::int64_t size) {
      show_values(b, begin, (sharded ? bucket_weights(b) : master(b)).stretch(begin, size));
    });
  }
  for (std::size_t b = 0; b < plan_.buckets.size(); ++b) {
    const std::int64_t shard = plan_.buckets[b].size / sharding_.shards;
    for (std::int64_t at = 0; at < plan_.buckets[b].size;) {
      const std::int64_t owner = at / shard;
      const std::int64_t size = std::min(piece_size(), (owner + 1) * shard - at);
      const Tensor values = staging.view(master_type_, {size});
      if (owner == sharding_.index) {
        device_.convert(master(b).stretch(at - owner * shard, size), values, stream);
      }
      communicator_.wait(communicator_.broadcast(values, static_cast<int>(owner), stream));
      show_values(b, at, values);
      at += size;
    }
  }
}

/// An array of the optimizer's state.
StateArray ParameterArena::array_of(const std::string& kind, std::size_t parameter, const Buffer& buffer,
                                    DType dtype) const {
  const ParameterSpec& spec = specs_[parameter];
  const Bucket& bucket = plan_.buckets[plan_.bucket_of[parameter]];
  const std::int64_t shard = bucket.size / sharding_.shards;
  const std::int64_t shard_begin = bucket.begin + sharding_.index * shard;
  const std::int64_t origin = plan_.begin[parameter];
  const std::int64_t begin = std::max(origin, shard_begin);
  const std::int64_t end = std::min(origin + spec.size(), shard_begin + shard);
  const Placement placement = sharding_.shards > 1 ? Placement::sharded : Placement::replicated;
  StateArray array{fmt::format("{}/{}", kind, spec.name), spec.slice(), dtype, placement, {}, spec.is_copy};
  if (begin < end) {
    const std::int64_t place = shard_place(bucket, sharding_) + (begin - shard_begin);
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
          {"weight/" + spec.name, spec.slice(), compute_, Placement::replicated, {{0, weight}}, spec.is_copy});
    }
    if (master_) arrays.push_back(array_of("master", i, master_, master_type_));
    for (std::size_t slot = 0; slot < slots_.size(); ++slot) {
      arrays.push_back(array_of(fmt::format("slot_{}", slot), i, slots_[slot], slot_type_));
    }
  }
  return arrays;
}

}  // namespace ddptrain
