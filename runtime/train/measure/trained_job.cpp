#include "runtime/train/measure/trained_job.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/process/cores.h"
#include "runtime/core/process/signal_requests.h"
#include "runtime/train/measure/measured_steps.h"
#include "runtime/train/measure/step_window.h"
#include "runtime/train/measure/trace.h"

namespace ddptrain {
namespace {

constexpr std::uint64_t kMostPieces = 250;  // of a window: half a millisecond each; reading their clocks takes 3 us

std::uint32_t traced_steps(double step_seconds) { return is_slow_step(step_seconds) ? 1 : kUnroll; }

/// The job after training.
class TrainedJob final : public TimedJob {
 public:
  TrainedJob(Trainer& trainer, const World& world, SensorSampler* sensors, double step_seconds)
      : trainer_(trainer),
        world_(world),
        device_(trainer.device()),
        sensors_(sensors),
        steps_(trainer),
        alone_(steps_.graph_of([&device = device_, step = steps_.step_without_communication()](std::uint32_t offset) {
          const WholeDevice whole(device);
          step(offset);
        })),
        step_(trainer.training_steps()),
        compute_step_(steps_.graph_of(steps_.step_without_communication())),
        communication_(steps_.graph_of(steps_.communication())),
        traced_(trainer, traced_steps(step_seconds), steps_.step()),
        traced_compute_step_(trainer, traced_steps(step_seconds), steps_.step_without_communication()) {
    step_.prepare(step_seconds < kLongStepSeconds);
    const bool several = step_.has_graph_of_several();
    for (StepGraph* graph : {&alone_, &step_, &compute_step_, &communication_}) {
      graph->prepare(several);
      // The first launch of a graph uploads it. It does not count.
      const std::uint64_t steps = several ? kUnroll + 1 : 1;
      if (device_.kind() == DeviceKind::cuda) time_window(*graph, steps, world, device_);
    }
    if (device_.kind() == DeviceKind::cpu) {
      cores_.emplace(world, device_.options().threads);
    } else {
      traced_.run();
      traced_compute_step_.run();
    }
  }

  Window time(TimedWork work, std::uint64_t steps, std::uint64_t lead) override {
    StepGraph& graph = *std::array{&alone_, &step_, &compute_step_, &communication_}[static_cast<std::size_t>(work)];
    const bool overlaps_next = work == TimedWork::step && trainer_.overlaps_next_forward();  // as in training
    const bool takes_part = work != TimedWork::alone || world_.rank() == 0;
    if (takes_part) {
      graph.run(overlaps_next ? std::max<std::uint64_t>(lead, 1) : lead);
      if (!overlaps_next) device_.synchronize();
    }
    if (sensors_ != nullptr) sensors_->take();  // drops earlier readings
    const WindowTime mine = time_window(graph, steps, world_, device_,
                                        {.takes_part = takes_part,
                                         .waits = !overlaps_next,
                                         .steps_per_piece = cores_ ? (steps + kMostPieces - 1) / kMostPieces : 0});
    device_.synchronize();
    SensorWindow shown;
    if (sensors_ != nullptr && takes_part) shown = sensors_->take();
    Window window{gather(mine.seconds)};
    if (cores_) {
      window.cpu_seconds = gather(mine.cpu_seconds);
      window.pieces = gather(mine.pieces, work);
      window.meeting = world_.nodes() > 1 ? Meeting::between_hosts : overlaps_next ? Meeting::at_start : Meeting::later;
    }
    for (const double mhz : gather(shown.sm_mhz.readings > 0 ? shown.sm_mhz.mean() : 0.0)) {
      if (mhz > 0.0) window.sm_mhz = window.sm_mhz == 0.0 ? mhz : std::min(window.sm_mhz, mhz);
    }
    return window;
  }

  std::vector<StepPair> time_pairs(std::uint64_t pairs, std::uint64_t lead) override {
    time_alternating(lead);
    const std::vector<double> mine = time_alternating(pairs);
    const std::vector<double> all = world_.all_gather(mine);
    std::vector<StepPair> result(pairs);
    for (std::size_t i = 0; i < all.size(); ++i) {
      StepPair& pair = result[i % mine.size() / 2];
      (i % 2 == 0 ? pair.step : pair.compute_step).push_back(all[i]);
    }
    return result;
  }

  std::vector<double> time_compute(bool communicates) override {
    world_.barrier();
    const auto start = std::chrono::steady_clock::now();
    const double waited_before = core_wait_.seconds();
    const double compute = compute_seconds((communicates ? traced_ : traced_compute_step_).run());
    const double waited = core_wait_.seconds() - waited_before;
    const double whole = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    const bool corrects = cores_ && cores_->crowd().empty();
    return gather(corrects ? compute * std::max(0.0, 1.0 - waited / whole) : compute);
  }

  std::optional<CoreShare::Taken> taken() override { return cores_ ? cores_->taken() : std::nullopt; }
  std::string crowd() override { return cores_ ? cores_->crowd() : ""; }

  void progress(double seconds, double of_seconds) override {
    const auto most = std::max(1u, static_cast<std::uint32_t>(std::ceil(of_seconds)));
    device_.watch().set_part(std::min(most, static_cast<std::uint32_t>(seconds)), most);
  }
  bool asked_to_end() override { return SignalRequests::end() != 0; }
  double agreed(double mine) override { return world_.max(mine); }

 private:
  /// Of each pair: seconds of the step, and of the compute step, at the mean clock of their group.
  std::vector<double> time_alternating(std::uint64_t pairs) {
    std::vector<double> result;
    for (const std::uint64_t end = next_pair_ + pairs; next_pair_ < end; next_pair_ += 2) {
      std::vector<TimedStep> steps;  // of a group
      for (const std::uint64_t pair : {next_pair_, next_pair_ + 1}) {
        const bool reversed = is_reversed(pair);
        steps.push_back(time_one(reversed ? compute_step_ : step_));
        steps.push_back(time_one(reversed ? step_ : compute_step_));
        if (reversed) std::swap(steps[steps.size() - 2], steps.back());
      }
      for (const double seconds : at_mean_clock(steps)) result.push_back(seconds);
    }
    return result;
  }

  /// One step, from a common start of all ranks.
  TimedStep time_one(StepGraph& graph) {
    world_.barrier();
    const auto start = std::chrono::steady_clock::now();
    if (cycles_ != nullptr) cycles_->begin();
    graph.run(1);
    if (cycles_ != nullptr) cycles_->end();
    device_.synchronize();
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    return {seconds, cycles_ != nullptr ? cycles_->cycles() : 0.0};
  }

  std::vector<double> gather(double value) const { return world_.all_gather(std::vector{value}); }

  /// Per rank. The ranks that take part have the same number of pieces.
  std::vector<Pieces> gather(const Pieces& mine, TimedWork work) const {
    const Pieces all = world_.all_gather(mine);
    std::vector<Pieces> ranks(static_cast<std::size_t>(world_.size()));
    const std::size_t taking_part = work == TimedWork::alone ? 1 : ranks.size();
    const auto count = static_cast<std::ptrdiff_t>(all.size() / taking_part);
    for (std::size_t rank = 0; rank < taking_part; ++rank) {
      const auto begin = all.begin() + static_cast<std::ptrdiff_t>(rank) * count;
      ranks[rank].assign(begin, begin + count);
    }
    return ranks;
  }

  Trainer& trainer_;
  const World& world_;
  Device& device_;
  SensorSampler* sensors_;
  MeasuredSteps steps_;
  StepGraph alone_;
  StepGraph& step_;
  StepGraph compute_step_;
  StepGraph communication_;
  TracedSteps traced_;
  TracedSteps traced_compute_step_;
  std::uint64_t next_pair_ = 0;  ///< Of steps that alternate.
  std::unique_ptr<CycleCounter> cycles_ = device_.make_cycle_counter();
  std::optional<CoreShare> cores_;  ///< If CPUs compute.
  CoreWait core_wait_;
};

}  // namespace

std::unique_ptr<TimedJob> make_trained_job(Trainer& trainer, const World& world, SensorSampler* sensors,
                                           double step_seconds) {
  return std::make_unique<TrainedJob>(trainer, world, sensors, step_seconds);
}

}  // namespace ddptrain
