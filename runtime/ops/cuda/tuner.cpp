#include "runtime/ops/cuda/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <limits>

namespace ddptrain::cuda {

float milliseconds_of(const std::function<void()>& work, cudaStream_t stream) {
  constexpr int kRuns = 4;
  EventHandle begin, end;
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

void Tuner::run(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) {
  std::size_t way = 0;
  if (enabled_) {
    auto found = chosen_.find({operation, gemm});
    if (found == chosen_.end() && !is_capturing(stream_)) {
      found = chosen_.emplace(std::pair{operation, gemm}, choose(ways)).first;
      spdlog::debug("{} {} x {} x {}: way {}", operation, gemm.m, gemm.n, gemm.k, found->second);
    }
    if (found != chosen_.end()) way = found->second;
  }
  ways[way]();
}

std::size_t Tuner::choose(const std::vector<Way>& ways) const {
  const Watch::Phase phase(watch_, "tuning");
  std::size_t best = 0;
  float best_time = milliseconds_of([&] { ways.front()(); }, stream_);
  for (std::size_t i = 1; i < ways.size(); ++i) {
    if (!ways[i]()) continue;
    const float time = milliseconds_of([&] { ways[i](); }, stream_);
    if (time >= best_time) continue;
    best = i;
    best_time = time;
  }
  return best;
}

}  // namespace ddptrain::cuda
