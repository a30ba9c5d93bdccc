#include "runtime/train/run/run_guard.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/train/replica/replica_check.h"

namespace ddptrain {
namespace {

/// The first over all ranks. If the optimizer's state is sharded, only one rank sees the reduced gradient of a
/// parameter.
struct FirstNonFinite {
  double step = std::numeric_limits<double>::infinity();
  double parameter = NonFinite::kNoParameter;

  bool any() const { return step < std::numeric_limits<double>::infinity(); }
};

FirstNonFinite first_on_any_rank(const World& world, const NonFinite& mine) {
  FirstNonFinite first;
  if (mine.first != 0) first.step = static_cast<double>(mine.first_step());
  const double my_step = first.step;
  first.step = world.min(first.step);
  if (!first.any()) return first;
  if (my_step == first.step) first.parameter = mine.first_parameter();
  first.parameter = world.min(first.parameter);
  return first;
}

std::string text_of(const FirstNonFinite& first, const ParameterArena& arena) {
  const auto parameter = static_cast<std::size_t>(first.parameter);
  const std::string what =
      parameter < arena.specs().size()
          ? fmt::format("the loss or the gradient of {}, the first in the order of the backward pass,",
                        arena.specs()[parameter].name)
          : "the norm of the gradient";
  return fmt::format("step {}: {} is NaN or infinite", static_cast<std::uint64_t>(first.step) + 1, what);
}

/// The text of the earliest step. If several ranks have texts of that step, the highest rank's, because the backward
/// pass begins in the last stage. Empty if no rank has a text.
std::string first_text(const World& world, std::uint64_t step, const std::string& mine) {
  const std::vector<std::uint64_t> steps = world.all_gather(std::vector{step});
  const std::vector<std::string> texts = world.all_gather(mine);
  std::string first;
  std::uint64_t first_step = std::numeric_limits<std::uint64_t>::max();
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (texts[rank].empty() || steps[rank] > first_step) continue;
    first = texts[rank];
    first_step = steps[rank];
  }
  return first;
}

constexpr const char* kAdvice = "A lower --lr, a longer --warmup or a --clip-norm may help";

}  // namespace

RunGuard::RunGuard(const Trainer& trainer, const World& world)
    : trainer_(trainer), world_(world), device_(trainer.device()) {}

void RunGuard::check_finite() {
  StepState* state = trainer_.state().step();
  StepState now;
  device_.copy_to_host(&now, state, sizeof(now));
  const FirstNonFinite first = first_on_any_rank(trainer_.replicas(), now.nonfinite);
  const std::string what =
      first.any() ? first_text(world_, static_cast<std::uint64_t>(first.step), text_of(first, trainer_.arena()))
                  : first_text(world_, 0, "");
  if (what.empty()) return;
  if (trainer_.on_nonfinite() == OnNonFinite::stop) {
    throw Error(fmt::format("{}. The run ends, and its parameters are not saved. {}; --on-nonfinite skip leaves out "
                            "such steps.",
                            what, kAdvice),
                true);
  }
  const std::uint64_t before = left_out_;
  left_out_ = now.nonfinite.left_out;
  if (world_.max(now.nonfinite.ended() ? 1.0 : 0.0) > 0.0) {
    throw Error(fmt::format("{}. {} steps in a row were left out: the run ends, and its parameters are not saved. {}.",
                            what, NonFinite::kMostInARow, kAdvice),
                true);
  }
  if (world_.rank() == 0) {
    spdlog::warn("{}; {} of the steps up to {} were left out, {} since the run began", what, left_out_ - before,
                 now.step, left_out_);
  }
  device_.zero(&state->nonfinite.first, sizeof(now.nonfinite.first), device_.compute_stream());
}

void RunGuard::check_evaluation(std::int64_t step, const MetricSums& sums) const {
  if (std::isfinite(sums.loss)) return;
  throw Error(fmt::format("after step {} the validation loss is NaN or infinite. The run ends, and its parameters are "
                          "not saved. A checkpoint of this step has them: resume from an earlier one. {}.",
                          step, kAdvice),
              true);
}

void RunGuard::check_replicas(std::int64_t step) {
  TensorGroup* const group = trainer_.stages().tensor;
  const World* const replicas = trainer_.replicas_agree() ? &trainer_.replicas() : nullptr;
  if (replicas == nullptr && group == nullptr) return;
  device_.finish_unfinished();
  const std::string difference = first_text(world_, 0, differing_replicas(trainer_.state(), replicas, group, device_));
  if (!difference.empty()) {
    throw Error(
        fmt::format("after step {} the replicas differ: {}. After step {} they were the same. The run ends, and "
                    "its parameters are not saved. Memory, a GPU or a link of a host may be at fault.",
                    step, difference, verified_),
        true);
  }
  verified_ = step;
}

}  // namespace ddptrain
