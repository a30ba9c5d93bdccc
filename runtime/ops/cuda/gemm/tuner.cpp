#include "runtime/ops/cuda/gemm/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace ddptrain::cuda {

namespace {

/// Mean of `runs` runs.
float mean_milliseconds(const std::function<void()>& work, int runs, cudaStream_t stream) {
  EventHandle begin;
  EventHandle end;
  DDP_CUDA(cudaEventCreate(begin.out()));
  DDP_CUDA(cudaEventCreate(end.out()));
  DDP_CUDA(cudaEventRecord(begin.get(), stream));
  for (int i = 0; i < runs; ++i) work();
  DDP_CUDA(cudaEventRecord(end.get(), stream));
  DDP_CUDA(cudaEventSynchronize(end.get()));
  float elapsed = 0.0f;
  DDP_CUDA(cudaEventElapsedTime(&elapsed, begin.get(), end.get()));
  return elapsed / static_cast<float>(runs);
}

/// `once`: about how long a run takes.
float settled_milliseconds(const std::function<void()>& work, float once, cudaStream_t stream) {
  constexpr float kSettling = 50.0f;  // in which the clock settles
  const int runs = static_cast<int>(kSettling / once) + 1;
  mean_milliseconds(work, runs, stream);
  return mean_milliseconds(work, runs, stream);
}

}  // namespace

float milliseconds_of(const std::function<void()>& work, cudaStream_t stream) {
  constexpr int kRuns = 4;
  work();
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kRuns; ++i) best = std::min(best, mean_milliseconds(work, 1, stream));
  return best;
}

std::optional<std::size_t> fastest_of(const std::vector<std::function<bool()>>& ways, cudaStream_t stream) {
  constexpr float kLong = 0.2f;    // ms
  constexpr float kAlike = 1.05f;  // as long as the fastest
  std::vector<float> times;
  for (const std::function<bool()>& way : ways) {
    times.push_back(way() ? milliseconds_of(way, stream) : std::numeric_limits<float>::infinity());
  }
  const auto best = std::min_element(times.begin(), times.end());
  if (best == times.end() || std::isinf(*best)) return std::nullopt;
  const float shortest = *best;
  const bool are_several =
      std::count_if(times.begin(), times.end(), [&](float t) { return t < kAlike * shortest; }) > 1;
  if (shortest < kLong || !are_several) return best - times.begin();
  for (std::size_t i = 0; i < ways.size(); ++i) {
    const bool is_alike = times[i] < kAlike * shortest;
    times[i] = is_alike ? settled_milliseconds(ways[i], times[i], stream) : std::numeric_limits<float>::infinity();
  }
  return std::min_element(times.begin(), times.end()) - times.begin();
}

std::string Tuner::work(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const {
  std::string names;
  for (const Way& way : ways) names += fmt::format("{}{}", names.empty() ? "" : ", ", way.name);
  return fmt::format("{} ({}): {} {}", operation, names, name_of(device_.precision()), name_of(gemm));
}

bool Tuner::is_new(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const {
  return device_.options().tune && !chosen_.contains({operation, gemm}) && choices_.open() && !is_capturing(stream()) &&
         choices_.find(work(operation, gemm, ways)) == nullptr;
}

void Tuner::run(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) {
  const std::size_t way = device_.options().tune ? index(operation, gemm, ways) : 0;
  if (!ways[way].run()) ways.front().run();
}

std::size_t Tuner::index(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) {
  if (const auto found = chosen_.find({operation, gemm}); found != chosen_.end()) return found->second;
  const std::string name_of_work = work(operation, gemm, ways);
  if (is_new(operation, gemm, ways)) choices_.choose(name_of_work, fastest(ways).name);
  const std::string* choice = choices_.find(name_of_work);
  if (choice == nullptr) return 0;
  const auto way = std::find_if(ways.begin(), ways.end(), [&](const Way& w) { return *choice == w.name; });
  const std::size_t chosen = way == ways.end() ? 0 : static_cast<std::size_t>(way - ways.begin());
  spdlog::debug("{}: {}", name_of_work, ways[chosen].name);
  return chosen_[{operation, gemm}] = chosen;
}

const Tuner::Way& Tuner::fastest(const std::vector<Way>& ways) const {
  const Watch::Phase phase(device_.watch(), "tuning");
  std::vector<std::function<bool()>> runs;
  for (const Way& way : ways) runs.push_back(way.run);
  return ways[fastest_of(runs, stream()).value_or(0)];
}

}  // namespace ddptrain::cuda
