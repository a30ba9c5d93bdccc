#include "runtime/train/parameter_arena.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"
#include "runtime/core/random.h"

namespace ddptrain {
namespace {

constexpr std::uint32_t kInitialValues = 0x494E4954;  // last counter word; dropout sites are small numbers

using Four = std::array<float, 4>;

Four uniform(const Philox& random) {
  Four values;
  for (std::size_t k = 0; k < 4; ++k) values[k] = 2.0f * uniform01(random.word[k]) - 1.0f;
  return values;
}

/// Box and Muller's transform of two pairs.
Four normal(const Philox& random) {
  Four values;
  for (std::size_t k = 0; k < 4; k += 2) {
    const float radius = std::sqrt(-2.0f * std::log(1.0f - uniform01(random.word[k])));
    const float angle = 2.0f * std::numbers::pi_v<float> * uniform01(random.word[k + 1]);
    values[k] = radius * std::cos(angle);
    values[k + 1] = radius * std::sin(angle);
  }
  return values;
}

template <class T>
void fill_random(T* values, std::int64_t count, const InitialValue& initial, std::uint32_t parameter,
                 std::uint64_t seed) {
  for (std::int64_t i = 0; i < count; i += 4) {
    const Philox random =
        philox(static_cast<std::uint32_t>(i / 4), parameter, static_cast<std::uint32_t>(i >> 34), kInitialValues, seed);
    const Four four = initial.kind == InitialValue::Kind::uniform ? uniform(random) : normal(random);
    const std::int64_t end = std::min<std::int64_t>(4, count - i);
    for (std::int64_t k = 0; k < end; ++k) values[i + k] = four[static_cast<std::size_t>(k)] * initial.scale;
  }
}

template <class T>
std::vector<T> initial_values(const std::vector<ParameterSpec>& specs, const BucketPlan& plan, std::uint64_t seed) {
  std::vector<T> values(static_cast<std::size_t>(plan.size), T{0});
  for (std::size_t i = 0; i < specs.size(); ++i) {
    T* first = values.data() + plan.begin[i];
    if (specs[i].initial.kind == InitialValue::Kind::constant) {
      std::fill_n(first, specs[i].size(), static_cast<T>(specs[i].initial.scale));
    } else {
      fill_random(first, specs[i].size(), specs[i].initial, static_cast<std::uint32_t>(i), seed);
    }
  }
  return values;
}

}  // namespace

ParameterArena::ParameterArena(std::vector<ParameterSpec> specs, const ArenaOptions& options, Backend& backend,
                               Communicator& communicator)
    : specs_(std::move(specs)),
      plan_(plan_buckets(specs_, size_of(backend.dtype()), options.bucket_bytes, options.last_bucket_bytes,
                         communicator.size())),
      backend_(backend),
      communicator_(communicator),
      compute_(backend.dtype()),
      master_type_(master_dtype(backend.precision())) {
  DDP_CHECK(plan_.size <= std::int64_t{UINT32_MAX}, "{} elements: too many for 32-bit positions", plan_.size);
  const auto elements = static_cast<std::size_t>(plan_.size);
  const std::size_t master_bytes = elements * size_of(master_type_);
  weights_ = backend.allocate(elements * size_of(compute_));
  gradients_ = communicator.allocate(elements * size_of(compute_));
  if (master_type_ != compute_) master_ = backend.allocate(master_bytes);
  first_moment_ = backend.allocate(master_bytes);
  if (options.second_moment) second_moment_ = backend.allocate(master_bytes);
  make_chunks();
}

void ParameterArena::make_chunks() {
  std::vector<UpdateChunk> chunks;
  for (const Bucket& bucket : plan_.buckets) {
    first_chunk_.push_back(static_cast<std::uint32_t>(chunks.size()));
    for (std::size_t k = 0; k < bucket.parameter_count; ++k) {
      const std::size_t parameter = bucket.first_parameter + k;
      const std::int64_t count = specs_[parameter].size();
      for (std::int64_t done = 0; done < count; done += kChunkElements) {
        chunks.push_back({static_cast<std::uint32_t>(parameter),
                          static_cast<std::uint32_t>(plan_.begin[parameter] + done),
                          static_cast<std::uint32_t>(std::min<std::int64_t>(kChunkElements, count - done)),
                          specs_[parameter].decays ? 1u : 0u});
      }
    }
  }
  first_chunk_.push_back(static_cast<std::uint32_t>(chunks.size()));
  chunks_ = backend_.allocate(chunks.size() * sizeof(UpdateChunk));
  backend_.copy_to_device(chunks_.data(), chunks.data(), chunks.size() * sizeof(UpdateChunk));
  norms_ = backend_.allocate(2 * (chunks.size() + specs_.size()) * sizeof(float));
}

std::int64_t ParameterArena::parameter_count() const {
  std::int64_t count = 0;
  for (const ParameterSpec& spec : specs_) count += spec.size();
  return count;
}

std::vector<Tensor> ParameterArena::views(const Buffer& buffer) const {
  std::vector<Tensor> tensors;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    char* data = static_cast<char*>(buffer.data()) + static_cast<std::size_t>(plan_.begin[i]) * size_of(compute_);
    tensors.push_back({data, compute_, specs_[i].shape});
  }
  return tensors;
}

std::vector<Tensor> ParameterArena::weights() const { return views(weights_); }
std::vector<Tensor> ParameterArena::gradients() const { return views(gradients_); }

Tensor ParameterArena::bucket_gradients(std::size_t bucket) const {
  const Bucket& slice = plan_.buckets.at(bucket);
  char* data = static_cast<char*>(gradients_.data()) + static_cast<std::size_t>(slice.begin) * size_of(compute_);
  return {data, compute_, {slice.size}};
}

UpdateSlice ParameterArena::update_slice(std::size_t bucket) const {
  UpdateSlice slice;
  slice.first_chunk = first_chunk_.at(bucket);
  slice.chunks = static_cast<const UpdateChunk*>(chunks_.data()) + slice.first_chunk;
  slice.chunk_count = first_chunk_.at(bucket + 1) - slice.first_chunk;
  slice.parameter_count = static_cast<std::uint32_t>(specs_.size());
  slice.weights = weights_.data();
  slice.master = master();
  slice.first_moment = first_moment_.data();
  slice.second_moment = second_moment_.data();
  slice.gradients = gradients_.data();
  slice.norms = static_cast<float*>(norms_.data());
  return slice;
}

void ParameterArena::initialise(std::uint64_t seed, int rank) {
  const auto elements = static_cast<std::size_t>(plan_.size);
  if (rank == 0 && master_type_ == DType::f64) {
    backend_.copy_to_device(master(), initial_values<double>(specs_, plan_, seed).data(), elements * sizeof(double));
  } else if (rank == 0) {
    backend_.copy_to_device(master(), initial_values<float>(specs_, plan_, seed).data(), elements * sizeof(float));
  }
  const Tensor values{master(), master_type_, {plan_.size}};
  const Stream stream = backend_.compute_stream();
  communicator_.broadcast(values, 0, stream);
  if (master_type_ != compute_) backend_.convert(values, weights_.view(compute_, {plan_.size}), stream);
  backend_.zero(first_moment_.data(), first_moment_.bytes(), stream);
  if (second_moment_.data() != nullptr) backend_.zero(second_moment_.data(), second_moment_.bytes(), stream);
  backend_.synchronize();
}

std::vector<double> ParameterArena::master_values() const {
  const auto elements = static_cast<std::size_t>(plan_.size);
  std::vector<double> padded(elements);
  if (master_type_ == DType::f64) {
    backend_.copy_to_host(padded.data(), master(), elements * sizeof(double));
  } else {
    std::vector<float> values(elements);
    backend_.copy_to_host(values.data(), master(), elements * sizeof(float));
    std::copy(values.begin(), values.end(), padded.begin());
  }
  std::vector<double> packed;
  for (std::size_t i = 0; i < specs_.size(); ++i) {
    const auto first = padded.begin() + plan_.begin[i];
    packed.insert(packed.end(), first, first + specs_[i].size());
  }
  return packed;
}

std::string ParameterArena::parameter_hash() const {
  const std::vector<double> master = master_values();
  const std::vector<float> values(master.begin(), master.end());
  Hash64 hash;
  std::size_t begin = 0;
  for (const ParameterSpec& spec : specs_) {
    hash.add(spec.name);
    for (const std::int64_t size : spec.shape) hash.add(size);
    const auto count = static_cast<std::size_t>(spec.size());
    hash.add(values.data() + begin, count * sizeof(float));
    begin += count;
  }
  return hash.hex();
}

void check_same_on_all_ranks(const World& world, const std::string& hash, const std::string& what) {
  const std::vector<std::string> hashes = world.all_gather(hash);
  std::string differing;
  for (std::size_t rank = 1; rank < hashes.size(); ++rank) {
    if (hashes[rank] != hashes[0]) differing += fmt::format("{}{}", differing.empty() ? "" : ", ", rank);
  }
  if (!differing.empty()) fail("{} differ from those of rank 0 on these ranks: {}", what, differing);
}

}  // namespace ddptrain
