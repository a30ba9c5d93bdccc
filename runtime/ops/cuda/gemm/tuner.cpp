#include "runtime/ops/cuda/gemm/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

namespace ddptrain::cuda {

namespace {

constexpr float kNever = std::numeric_limits<float>::infinity();
constexpr int kRuns = 4;  // of which the shortest counts

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

/// The same for about `duration` ms. `once`: about how long a run takes.
float mean_milliseconds_for(float duration, const std::function<void()>& work, float once, cudaStream_t stream) {
  return mean_milliseconds(work, static_cast<int>(duration / once) + 1, stream);
}

float best_milliseconds(const std::function<void()>& work, cudaStream_t stream) {
  float best = kNever;
  for (int i = 0; i < kRuns; ++i) best = std::min(best, mean_milliseconds(work, 1, stream));
  return best;
}

}  // namespace

float milliseconds_of(const std::function<void()>& work, cudaStream_t stream) {
  work();
  return best_milliseconds(work, stream);
}

std::vector<float> milliseconds_of(const std::vector<std::function<bool()>>& ways, cudaStream_t stream) {
  constexpr float kSlow = 1.3f;        // times as long as the fastest so far
  constexpr float kLongest = 1000.0f;  // ms of timed runs, after which no further way is tried
  std::vector<float> times(ways.size(), kNever);
  float shortest = kNever;
  float spent = 0.0f;
  for (std::size_t i = 0; i < ways.size() && spent < kLongest; ++i) {
    if (!ways[i]()) continue;
    times[i] = mean_milliseconds(ways[i], 1, stream);
    spent += times[i];
    if (times[i] < kSlow * shortest) {
      times[i] = std::min(times[i], best_milliseconds(ways[i], stream));
      spent += kRuns * times[i];
    }
    shortest = std::min(shortest, times[i]);
  }
  return times;
}

std::vector<std::size_t> fastest_first(const std::vector<float>& times) {
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < times.size(); ++i) {
    if (times[i] < kNever) order.push_back(i);
  }
  std::stable_sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
  return order;
}

std::optional<std::size_t> fastest_of(const std::vector<std::function<bool()>>& ways, cudaStream_t stream) {
  constexpr float kAlike = 1.05f;        // times as long as the fastest
  constexpr std::size_t kMostAlike = 6;  // that are timed under load
  constexpr float kSettling = 50.0f;     // ms in which the clock settles
  constexpr float kUnderLoad = 25.0f;    // ms
  std::vector<float> times = milliseconds_of(ways, stream);
  std::vector<std::size_t> alike = fastest_first(times);
  if (alike.empty()) return std::nullopt;
  const float shortest = times[alike.front()];
  std::erase_if(alike, [&](std::size_t way) { return times[way] >= kAlike * shortest; });
  alike.resize(std::min(alike.size(), kMostAlike));
  if (shortest < kLongMilliseconds || alike.size() == 1) return alike.front();
  mean_milliseconds_for(kSettling, ways[alike.front()], shortest, stream);
  for (const std::size_t way : alike) times[way] = mean_milliseconds_for(kUnderLoad, ways[way], times[way], stream);
  return *std::min_element(alike.begin(), alike.end(),
                           [&](std::size_t a, std::size_t b) { return times[a] < times[b]; });
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
