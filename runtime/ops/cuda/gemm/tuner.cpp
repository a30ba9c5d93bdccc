#include "runtime/ops/cuda/gemm/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

namespace ddptrain::cuda {

float milliseconds_of(const std::function<void()>& work, cudaStream_t stream) {
  constexpr int kRuns = 4;
  EventHandle begin;
  EventHandle end;
  DDP_CUDA(cudaEventCreate(begin.out()));
  DDP_CUDA(cudaEventCreate(end.out()));
  work();
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kRuns; ++i) {
    DDP_CUDA(cudaEventRecord(begin.get(), stream));
    work();
    DDP_CUDA(cudaEventRecord(end.get(), stream));
    DDP_CUDA(cudaEventSynchronize(end.get()));
    float elapsed = 0.0f;
    DDP_CUDA(cudaEventElapsedTime(&elapsed, begin.get(), end.get()));
    best = std::min(best, elapsed);
  }
  return best;
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
  const Way* best = &ways.front();
  float best_time = milliseconds_of([&] { best->run(); }, stream());
  for (const Way& way : ways) {
    if (&way == &ways.front() || !way.run()) continue;
    const float time = milliseconds_of([&] { way.run(); }, stream());
    if (time >= best_time) continue;
    best = &way;
    best_time = time;
  }
  return *best;
}

}  // namespace ddptrain::cuda
