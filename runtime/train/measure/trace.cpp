#include "runtime/train/measure/trace.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/device/queueing.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json metadata(const char* kind, int rank, int lane, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

/// The thread of each span: 0 for compute, and 1 or more for communication. Spans of communication that overlap are in
/// different threads, because viewers only nest the spans of a thread.
std::vector<int> threads_of(const std::vector<TimelineSpan>& spans) {
  std::vector<std::size_t> order(spans.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, {}, [&](std::size_t i) { return spans[i].begin_seconds; });
  std::vector<int> threads(spans.size());
  std::vector<double> ends;  // of the last span of each thread
  for (const std::size_t i : order) {
    if (spans[i].lane == Lane::compute) continue;
    const auto free = std::ranges::find_if(ends, [&](double end) { return end <= spans[i].begin_seconds; });
    threads[i] = static_cast<int>(free - ends.begin()) + 1;
    if (free == ends.end()) {
      ends.push_back(spans[i].end_seconds);
    } else {
      *free = spans[i].end_seconds;
    }
  }
  return threads;
}

/// The time at which the first rank of this host leaves a barrier. Hosts leave it at about the same time.
double common_start(const World& world) {
  struct Left {
    int node;
    double seconds;
  };
  world.barrier();
  double first = std::numeric_limits<double>::infinity();
  for (const auto& [node, seconds] : world.all_gather(std::vector{Left{world.node(), clock_seconds()}})) {
    if (node == world.node()) first = std::min(first, seconds);
  }
  return first;
}

}  // namespace

TracedSteps::TracedSteps(Trainer& trainer, std::uint32_t steps, StepGraph::Step step)
    : trainer_(trainer),
      device_(trainer.device()),
      steps_(steps),
      step_(std::move(step)),
      timeline_(device_.make_timeline()) {
  if (!trainer.options().graph) return;
  device_.record(*timeline_, [&] { graph_ = device_.capture([this] { queue(); }); });
}

void TracedSteps::queue() {
  const Stream stream = device_.compute_stream();
  for (std::uint32_t i = 0; i < steps_; ++i) {
    const Span span(device_.timeline(), Lane::compute, stream, fmt::format("step {}", i));
    step_(i);
  }
  device_.get<OptimizerOps>().advance(trainer_.state().step(), steps_, stream);
}

std::vector<TimelineSpan> TracedSteps::run() {
  if (graph_ != nullptr) {
    graph_->launch();
  } else {
    timeline_ = device_.make_timeline();
    const Queueing queueing(device_);
    device_.record(*timeline_, [this] { queue(); });
  }
  device_.synchronize();
  return timeline_->spans();
}

std::vector<TimelineSpan> trace_steps(Trainer& trainer, std::uint32_t steps) {
  const Watch::Phase phase(trainer.device().watch(), "trace");
  TracedSteps traced(trainer, steps, [&trainer](std::uint32_t offset) { trainer.train_step(offset); });
  trainer.training_steps().run(2);  // so that the first traced step follows other steps
  return traced.run();
}

std::string chrome_trace(const World& world, const std::vector<TimelineSpan>& mine) {
  const double start = common_start(world);
  double first = std::numeric_limits<double>::infinity();
  for (const TimelineSpan& span : mine) first = std::min(first, span.begin_seconds - start);
  const double origin = start + world.min(first);
  const int rank = world.rank();
  Json events = {metadata("process_name", rank, 0, fmt::format("rank {} ({})", rank, world.hostname())),
                 metadata("thread_name", rank, 0, "compute"), metadata("thread_name", rank, 1, "communication")};
  const std::vector<int> threads = threads_of(mine);
  const int last = threads.empty() ? 0 : *std::ranges::max_element(threads);
  for (int thread = 2; thread <= last; ++thread) {
    events.push_back(metadata("thread_name", rank, thread, fmt::format("communication {}", thread)));
  }
  for (std::size_t i = 0; i < mine.size(); ++i) {
    const TimelineSpan& span = mine[i];
    events.push_back({{"ph", "X"},
                      {"name", span.name},
                      {"pid", rank},
                      {"tid", threads[i]},
                      {"ts", 1e6 * (span.begin_seconds - origin)},
                      {"dur", 1e6 * (span.end_seconds - span.begin_seconds)}});
  }
  Json all = Json::array();
  const std::vector<std::string> of_ranks = world.all_gather(events.dump());
  if (world.rank() != 0) return {};
  for (const std::string& of_rank : of_ranks) {
    for (Json& event : Json::parse(of_rank)) all.push_back(std::move(event));
  }
  return Json{{"traceEvents", std::move(all)}, {"displayTimeUnit", "ms"}}.dump();
}

double compute_seconds(const std::vector<TimelineSpan>& spans) {
  std::vector<double> begins;
  std::vector<double> ends;
  for (const TimelineSpan& span : spans) {
    if (span.name.rfind("step ", 0) == 0) {
      begins.push_back(span.begin_seconds);
      ends.push_back(span.begin_seconds);
    } else if (span.name.rfind("wait for ", 0) == 0 && !begins.empty()) {
      begins.back() += span.end_seconds - span.begin_seconds;
    } else if (span.name == "backward" && !ends.empty()) {
      ends.back() = std::max(ends.back(), span.end_seconds);
    }
  }
  DDP_CHECK(!begins.empty(), "no step among {} spans", spans.size());
  const std::size_t first = begins.size() > 1 ? 1 : 0;
  double sum = 0.0;
  for (std::size_t i = first; i < begins.size(); ++i) sum += ends[i] - begins[i];
  return sum / static_cast<double>(begins.size() - first);
}

}  // namespace ddptrain
