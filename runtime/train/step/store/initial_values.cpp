#include "runtime/train/step/store/initial_values.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numbers>
#include <thread>

#include "runtime/core/error.h"
#include "runtime/core/process/host.h"
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

/// The Box-Muller transform of two pairs.
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

/// Fills values [begin, end) of a parameter. `begin` is a multiple of 4.
void fill_random(float* values, std::int64_t begin, std::int64_t end, const InitialValue& initial,
                 std::uint32_t identity, std::uint64_t seed) {
  for (std::int64_t i = begin; i < end; i += 4) {
    const Philox random =
        philox(static_cast<std::uint32_t>(i / 4), identity, static_cast<std::uint32_t>(i >> 34), kInitialValues, seed);
    const Four four = initial.kind == InitialValue::Kind::uniform ? uniform(random) : normal(random);
    const std::int64_t left = std::min<std::int64_t>(4, end - i);
    for (std::int64_t k = 0; k < left; ++k) values[i + k] = four[static_cast<std::size_t>(k)] * initial.scale;
  }
}

/// The work of one thread: elements [begin, end) of `values`, which has the whole parameter.
struct Piece {
  const ParameterSpec* spec;
  float* values;
  std::int64_t begin, end;
};

/// Calls work(i) for i below `count`, on as many threads as this process has cores.
template <class Work>
void share_out(std::size_t count, const Work& work) {
  std::atomic<std::size_t> next = 0;
  const auto take = [&] {
    for (std::size_t i = next++; i < count; i = next++) work(i);
  };
  std::vector<std::jthread> threads;
  const auto most = static_cast<std::size_t>(usable_cores());
  for (std::size_t i = 1; i < std::min(count, most); ++i) threads.emplace_back(take);
  take();
}

/// Sets a whole parameter to its initial values. Random values are left to `pieces`.
void begin_values(const ParameterSpec& spec, float* values, std::int64_t size, std::vector<Piece>& pieces) {
  constexpr std::int64_t kValues = 1 << 18;
  if (spec.initial.read) {
    const std::vector<float> values_read = spec.initial.read();
    DDP_CHECK(static_cast<std::int64_t>(values_read.size()) >= size, "{} has {} values, not {}", spec.name,
              values_read.size(), size);
    std::copy_n(values_read.begin(), size, values);
  } else if (spec.initial.kind == InitialValue::Kind::constant) {
    std::fill_n(values, size, spec.initial.scale);
  } else {
    for (std::int64_t begin = 0; begin < size; begin += kValues) {
      pieces.push_back({&spec, values, begin, std::min(begin + kValues, size)});
    }
  }
}

}  // namespace

void make_initial_values(const std::vector<ParameterSpec>& specs, const BucketPlan& plan, const Bucket& bucket,
                         std::uint64_t seed, std::vector<float>& values) {
  values.assign(static_cast<std::size_t>(bucket.size), 0.0f);
  std::vector<std::vector<float>> whole(bucket.parameter_count);  // of split parameters
  std::vector<Piece> pieces;
  const auto each = [&](const auto& visit) {
    for (std::size_t k = 0; k < bucket.parameter_count; ++k) {
      const std::size_t i = bucket.first_parameter + k;
      visit(specs[i], whole[k], values.data() + (plan.begin[i] - bucket.begin));
    }
  };
  each([&](const ParameterSpec& spec, std::vector<float>& of_all, float* mine) {
    if (spec.split) of_all.resize(static_cast<std::size_t>(element_count(spec.split->whole)));
    begin_values(spec, spec.split ? of_all.data() : mine, element_count(spec.part().whole), pieces);
  });
  share_out(pieces.size(), [&](std::size_t k) {
    const Piece& piece = pieces[k];
    fill_random(piece.values, piece.begin, piece.end, piece.spec->initial, piece.spec->identity(), seed);
  });
  each([&](const ParameterSpec& spec, const std::vector<float>& of_all, float* mine) {
    if (!spec.split) return;
    spec.split->visit(0, spec.size(), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
      std::copy_n(of_all.data() + in_whole, count, mine + at);
    });
  });
}

}  // namespace ddptrain
