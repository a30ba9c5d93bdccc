#include "runtime/ops/cuda/tuner.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <array>
#include <limits>

namespace ddptrain::cuda {

namespace {

using Work = std::function<void()>;

class Stopwatch {
 public:
  explicit Stopwatch(cudaStream_t stream) : stream_(stream) {
    DDP_CUDA(cudaEventCreate(begin_.out()));
    DDP_CUDA(cudaEventCreate(end_.out()));
  }

  float milliseconds(const Work& work, int runs) {
    DDP_CUDA(cudaEventRecord(begin_.get(), stream_));
    for (int i = 0; i < runs; ++i) work();
    DDP_CUDA(cudaEventRecord(end_.get(), stream_));
    DDP_CUDA(cudaEventSynchronize(end_.get()));
    float elapsed = 0.0f;
    DDP_CUDA(cudaEventElapsedTime(&elapsed, begin_.get(), end_.get()));
    return elapsed / static_cast<float>(runs);
  }

 private:
  cudaStream_t stream_;
  EventHandle begin_, end_;
};

float best_of_few(const Work& work, Stopwatch& stopwatch) {
  constexpr int kRuns = 4;
  work();
  float best = std::numeric_limits<float>::infinity();
  for (int i = 0; i < kRuns; ++i) best = std::min(best, stopwatch.milliseconds(work, 1));
  return best;
}

}  // namespace

std::vector<float> milliseconds_of(const std::vector<Work>& ways, double seconds, cudaStream_t stream) {
  constexpr int kRounds = 3;
  constexpr float kNear = 1.15f;
  Stopwatch stopwatch(stream);
  std::vector<float> times;
  for (const Work& way : ways) times.push_back(best_of_few(way, stopwatch));
  if (seconds <= 0.0 || ways.size() < 2) return times;
  const float limit = kNear * *std::min_element(times.begin(), times.end());
  std::vector<std::array<float, kRounds>> rounds(ways.size());
  for (int round = 0; round < kRounds; ++round) {
    for (std::size_t i = 0; i < ways.size(); ++i) {
      if (times[i] > limit) continue;
      const int runs = std::max(1, static_cast<int>(seconds * 1e3 / kRounds / 2 / times[i]));
      for (int run = 0; run < runs; ++run) ways[i]();  // the clock follows the power
      rounds[i][static_cast<std::size_t>(round)] = stopwatch.milliseconds(ways[i], runs);
    }
  }
  for (std::size_t i = 0; i < ways.size(); ++i) {
    if (times[i] > limit) continue;
    std::sort(rounds[i].begin(), rounds[i].end());
    times[i] = rounds[i][kRounds / 2];
  }
  return times;
}

std::string Tuner::work(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const {
  std::string names;
  for (const Way& way : ways) names += fmt::format("{}{}", names.empty() ? "" : ", ", way.name);
  return fmt::format("{} ({}): {} {}", operation, names, name_of(precision_), name_of(gemm));
}

bool Tuner::is_new(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) const {
  return enabled_ && !chosen_.contains({operation, gemm}) && choices_.open() && !is_capturing(stream_) &&
         choices_.find(work(operation, gemm, ways)) == nullptr;
}

void Tuner::run(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) {
  const std::size_t way = enabled_ ? index(operation, gemm, ways) : 0;
  if (!ways[way].run()) ways.front().run();
}

std::size_t Tuner::index(const std::string& operation, const Gemm& gemm, const std::vector<Way>& ways) {
  if (const auto found = chosen_.find({operation, gemm}); found != chosen_.end()) return found->second;
  const std::string name_of_work = work(operation, gemm, ways);
  if (is_new(operation, gemm, ways)) choices_.choose(name_of_work, fastest(name_of_work, ways).name);
  const std::string* choice = choices_.find(name_of_work);
  if (choice == nullptr) return 0;
  const auto way = std::find_if(ways.begin(), ways.end(), [&](const Way& w) { return *choice == w.name; });
  const std::size_t chosen = way == ways.end() ? 0 : static_cast<std::size_t>(way - ways.begin());
  spdlog::debug("{}: {}", name_of_work, ways[chosen].name);
  return chosen_[{operation, gemm}] = chosen;
}

const Tuner::Way& Tuner::fastest(const std::string& name_of_work, const std::vector<Way>& ways) const {
  const Watch::Phase phase(watch_, "tuning");
  std::vector<const Way*> able;
  std::vector<Work> works;
  for (const Way& way : ways) {
    if (&way != &ways.front() && !way.run()) continue;
    able.push_back(&way);
    works.push_back([&way] { way.run(); });
  }
  const std::vector<float> times = milliseconds_of(works, seconds_, stream_);
  for (std::size_t i = 0; i < able.size(); ++i)
    spdlog::debug("{}: {} {:.4f} ms", name_of_work, able[i]->name, times[i]);
  return *able[static_cast<std::size_t>(std::min_element(times.begin(), times.end()) - times.begin())];
}

}  // namespace ddptrain::cuda
