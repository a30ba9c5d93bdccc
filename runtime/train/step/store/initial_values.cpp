#include "runtime/train/step/store/initial_values.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <numbers>
#include <thread>

#include "runtime/core/error.h"
#include "runtime/core/process/cores.h"
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

/// Sets `values` to the values of a parameter from element `begin` on.
void fill_random(std::span<float> values, std::int64_t begin, const InitialValue& initial, std::uint32_t identity,
                 std::uint64_t seed) {
  const std::int64_t end = begin + std::ssize(values);
  for (std::int64_t i = begin / 4 * 4; i < end; i += 4) {
    const Philox random =
        philox(static_cast<std::uint32_t>(i / 4), identity, static_cast<std::uint32_t>(i >> 34), kInitialValues, seed);
    const Four four = initial.kind == InitialValue::Kind::uniform ? uniform(random) : normal(random);
    for (std::int64_t k = std::max(i, begin); k < std::min(i + 4, end); ++k) {
      values[static_cast<std::size_t>(k - begin)] = four[static_cast<std::size_t>(k - i)] * initial.scale;
    }
  }
}

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

}  // namespace

/// The work of one thread: random values of a parameter, from element `begin` of the whole on.
struct InitialValues::Piece {
  const ParameterSpec* spec;
  std::int64_t begin;
  std::span<float> values;
};

void InitialValues::make(std::int64_t begin, std::span<float> values) {
  const std::int64_t end = begin + std::ssize(values);
  std::ranges::fill(values, 0.0f);
  std::vector<Piece> random;
  const auto after = std::ranges::upper_bound(plan_.begin, begin);
  for (auto i = static_cast<std::size_t>(std::max<std::ptrdiff_t>(after - plan_.begin.begin(), 1) - 1);
       i < specs_.size() && plan_.begin[i] < end; ++i) {
    const std::int64_t from = std::max(begin, plan_.begin[i]);
    const std::int64_t to = std::min(end, plan_.begin[i] + specs_[i].size());
    if (from >= to) continue;
    const auto place = static_cast<std::size_t>(from - begin);
    const auto count = static_cast<std::size_t>(to - from);
    add_parameter(i, from - plan_.begin[i], values.subspan(place, count), random);
  }
  share_out(random.size(), [&](std::size_t k) {
    const Piece& piece = random[k];
    fill_random(piece.values, piece.begin, piece.spec->initial, piece.spec->identity(), seed_);
  });
}

/// Sets `values` to elements of this rank's slice of a parameter, from `begin` on. Random values are left to `random`.
void InitialValues::add_parameter(std::size_t parameter, std::int64_t begin, std::span<float> values,
                                  std::vector<Piece>& random) {
  constexpr std::int64_t kValues = 1 << 17;  // of a thread
  const ParameterSpec& spec = specs_[parameter];
  spec.slice().visit(
      begin, begin + std::ssize(values), [&](std::int64_t at, std::int64_t in_whole, std::int64_t count) {
        const std::span<float> mine =
            values.subspan(static_cast<std::size_t>(at - begin), static_cast<std::size_t>(count));
        if (spec.initial.read) {
          std::copy_n(read(parameter).begin() + in_whole, count, mine.begin());
        } else if (spec.initial.kind == InitialValue::Kind::constant) {
          std::ranges::fill(mine, spec.initial.scale);
        } else {
          for (std::int64_t done = 0; done < count; done += kValues) {
            const auto size = static_cast<std::size_t>(std::min(kValues, count - done));
            random.push_back({&spec, in_whole + done, mine.subspan(static_cast<std::size_t>(done), size)});
          }
        }
      });
}

const std::vector<float>& InitialValues::read(std::size_t parameter) {
  if (read_parameter_ == parameter) return read_;
  const ParameterSpec& spec = specs_[parameter];
  const std::int64_t size = element_count(spec.slice().whole);
  read_ = {};  // both would be in memory
  read_ = spec.initial.read();
  DDP_CHECK(std::ssize(read_) >= size, "{} has {} values, not {}", spec.name, read_.size(), size);
  read_parameter_ = parameter;
  return read_;
}

}  // namespace ddptrain
