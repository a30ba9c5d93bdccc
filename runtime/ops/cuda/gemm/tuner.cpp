#include "runtime/ops/cuda/gemm/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

namespace ddptrain::cuda {

namespace {

/// Time of all `runs` of the work together, ms.
float time_of_runs(const std::function<void()>& work, int runs, cudaStream_t stream) {
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
  return elapsed;
}

}  // namespace

float milliseconds_of(const std::function<void()>& work, cudaStream_t stream) {
  constexpr int kRuns = 4;
  work();
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kRuns; ++i) best = std::min(best, time_of_runs(work, 1, stream));
  return best;
}

std::size_t fastest_of(const std::vector<std::function<void()>>& works, cudaStream_t stream) {
  constexpr float kFillsGpu = 0.1f;  // ms
  constexpr std::size_t kFast = 3;
  constexpr float kSettled = 40.0f;  // ms after which the clock has settled, and then in which a work is timed
  std::vector<float> alone;
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < works.size(); ++i) {
    alone.push_back(milliseconds_of(works[i], stream));
    order.push_back(i);
  }
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return alone[i]; });
  const float best = alone[order.front()];
  if (best < kFillsGpu) return order.front();
  order.resize(std::min(order.size(), kFast));
  if (std::ranges::find(order, 0u) == order.end()) order.push_back(0);
  const int runs = static_cast<int>(kSettled / best) + 1;
  std::vector<float> settled;
  for (const std::size_t i : order) {
    time_of_runs(works[i], runs, stream);
    settled.push_back(time_of_runs(works[i], runs, stream));
  }
  return order[static_cast<std::size_t>(std::ranges::min_element(settled) - settled.begin())];
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
  std::vector<const Way*> able;
  std::vector<std::function<void()>> works;
  for (const Way& way : ways) {
    if (&way != &ways.front() && !way.run()) continue;
    able.push_back(&way);
    works.emplace_back([&way] { way.run(); });
  }
  return *able[fastest_of(works, stream())];
}

}  // namespace ddptrain::cuda
