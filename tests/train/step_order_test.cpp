#include "runtime/train/step/step_order.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

using Kind = Action::Kind;

std::string text_of(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    if (action.kind == Kind::exchange) continue;
    text += (action.kind == Kind::forward ? " F" : " B") + std::to_string(action.pass);
  }
  return text;
}

/// Runs the stages side by side: an exchange ends when the other side of each of its messages has begun.
class SideBySide {
 public:
  SideBySide(std::int64_t stages, std::int64_t passes) {
    for (std::int64_t stage = 0; stage < stages; ++stage) plans_.push_back(pipeline_schedule(stages, stage, passes));
    next_.resize(plans_.size());
    clock_.resize(plans_.size());
  }

  /// Time until all have ended, where a forward pass takes 1 and a backward pass 2; -1: they wait for each other.
  double run() {
    while (!done()) {
      bool moved = false;
      for (std::size_t stage = 0; stage < plans_.size(); ++stage) moved = advance(stage) || moved;
      if (!moved) return -1.0;
    }
    return *std::max_element(clock_.begin(), clock_.end());
  }

 private:
  enum class Message { activations, gradients };
  using Key = std::tuple<std::size_t, std::size_t, Message, std::int64_t>;  // from, to, what, pass

  bool done() const {
    for (std::size_t stage = 0; stage < plans_.size(); ++stage) {
      if (next_[stage] < plans_[stage].size()) return false;
    }
    return true;
  }

  static std::vector<std::pair<Key, bool>> messages_of(std::size_t stage, const Exchange& exchange) {
    std::vector<std::pair<Key, bool>> messages;  // and whether this stage is the sender
    if (const auto p = exchange.activations_out)
      messages.push_back({{stage, stage + 1, Message::activations, *p}, true});
    if (const auto p = exchange.activations_in)
      messages.push_back({{stage - 1, stage, Message::activations, *p}, false});
    if (const auto p = exchange.gradients_out) messages.push_back({{stage, stage - 1, Message::gradients, *p}, true});
    if (const auto p = exchange.gradients_in) messages.push_back({{stage + 1, stage, Message::gradients, *p}, false});
    return messages;
  }

  bool advance(std::size_t stage) {
    if (next_[stage] == plans_[stage].size()) return false;
    const Action& action = plans_[stage][next_[stage]];
    if (action.kind != Kind::exchange) {
      clock_[stage] += action.kind == Kind::forward ? 1.0 : 2.0;
    } else if (!meet(stage, action.messages)) {
      return false;
    }
    ++next_[stage];
    return true;
  }

  bool meet(std::size_t stage, const Exchange& exchange) {
    double begin = clock_[stage];
    bool all = true;
    for (const auto& [key, sends] : messages_of(stage, exchange)) {
      (sends ? sent_ : received_).emplace(key, clock_[stage]);
      const auto& other_side = sends ? received_ : sent_;
      const auto other = other_side.find(key);
      all = all && other != other_side.end();
      if (all) begin = std::max(begin, other->second);
    }
    if (all) clock_[stage] = begin;
    return all;
  }

  std::vector<std::vector<Action>> plans_;
  std::vector<std::size_t> next_;
  std::vector<double> clock_;
  std::map<Key, double> sent_, received_;
};

TEST(PipelineSchedule, OneStageGoesForwardAndBackwardByTurns) {
  EXPECT_EQ(text_of(pipeline_schedule(1, 0, 3)), " F0 B0 F1 B1 F2 B2");
  for (const Action& action : pipeline_schedule(1, 0, 3)) EXPECT_NE(action.kind, Kind::exchange);
}

TEST(PipelineSchedule, AStageIsAheadByTheStagesBehindIt) {
  EXPECT_EQ(text_of(pipeline_schedule(3, 0, 4)), " F0 F1 F2 B0 F3 B1 B2 B3");
  EXPECT_EQ(text_of(pipeline_schedule(3, 1, 4)), " F0 F1 B0 F2 B1 F3 B2 B3");
  EXPECT_EQ(text_of(pipeline_schedule(3, 2, 4)), " F0 B0 F1 B1 F2 B2 F3 B3");
  EXPECT_EQ(text_of(pipeline_schedule(3, 0, 1)), " F0 B0");
  EXPECT_THROW(pipeline_schedule(2, 2, 1), Error);
}

/// What a stage exchanges with the next or the previous one, in order.
std::vector<Exchange> exchanges(std::int64_t stages, std::int64_t stage, std::int64_t passes, bool with_next) {
  std::vector<Exchange> all;
  for (const Action& action : pipeline_schedule(stages, stage, passes)) {
    const Exchange& m = action.messages;
    const Exchange part{.activations_in = with_next ? m.activations_out : m.activations_in,
                        .gradients_in = with_next ? m.gradients_in : m.gradients_out};
    if (part != Exchange{}) all.push_back(part);
  }
  return all;
}

/// NCCL connects two ranks when they first exchange, and the hosts wait for each other there. If one of them put more
/// messages into an exchange than the other, it would wait for what the other has still to compute.
TEST(PipelineSchedule, BothEndsOfAnExchangeHaveTheSameMessages) {
  for (std::int64_t stages = 2; stages <= 6; ++stages) {
    for (std::int64_t passes = 1; passes <= 8; ++passes) {
      for (std::int64_t stage = 0; stage + 1 < stages; ++stage) {
        EXPECT_EQ(exchanges(stages, stage, passes, true), exchanges(stages, stage + 1, passes, false))
            << "stages " << stage << " and " << stage + 1 << " of " << stages << ", " << passes << " passes";
      }
    }
  }
}

TEST(PipelineSchedule, NoStagesWaitForEachOtherAndTheBubbleIsThatOf1F1B) {
  for (std::int64_t stages = 1; stages <= 8; ++stages) {
    for (const std::int64_t passes : {1, 2, 3, 4, 8, 16, 32}) {
      EXPECT_EQ(SideBySide(stages, passes).run(), 3.0 * static_cast<double>(passes + stages - 1))
          << stages << " stages, " << passes << " passes";
    }
  }
}

TEST(PipelineSchedule, PassesInFlightAreAsManyAsSaid) {
  for (std::int64_t stages = 1; stages <= 8; ++stages) {
    for (std::int64_t stage = 0; stage < stages; ++stage) {
      for (const std::int64_t passes : {1, 2, 8, 32}) {
        std::int64_t now = 0, most = 0;
        for (const Action& action : pipeline_schedule(stages, stage, passes)) {
          now += action.kind == Kind::forward ? 1 : action.kind == Kind::backward ? -1 : 0;
          most = std::max(most, now);
        }
        EXPECT_EQ(now, 0);
        EXPECT_EQ(most, passes_in_flight(stages, stage, passes)) << stages << ' ' << stage << ' ' << passes;
      }
    }
  }
}

TEST(StepOrder, UnitsTakeTurnsThatTellTheNextOne) {
  EXPECT_EQ(forward_turns(3), (std::vector<UnitTurn>{{0, 1}, {1, 2}, {2, std::nullopt}}));
  EXPECT_EQ(backward_turns(3), (std::vector<UnitTurn>{{2, 1}, {1, 0}, {0, std::nullopt}}));
  EXPECT_EQ(forward_turns(1), backward_turns(1));
}

TEST(StepOrder, HasAllPassesAndActionsOfAStage) {
  const StepOrder order = step_order(2, 0, passes_of_step(2, 3), 4);
  ASSERT_EQ(order.passes.size(), 6u);
  EXPECT_EQ(order.actions, pipeline_schedule(2, 0, 6));
  std::vector<std::int64_t> begun, ended;
  for (const Action& action : order.actions) {
    const std::vector<UnitTurn>& turns = order.turns_of(action);
    if (action.kind == Kind::exchange) {
      EXPECT_TRUE(turns.empty());
      continue;
    }
    EXPECT_EQ(turns, action.kind == Kind::forward ? forward_turns(4) : backward_turns(4));
    (action.kind == Kind::forward ? begun : ended).push_back(order.pass_of(action).number);
  }
  EXPECT_EQ(begun, (std::vector<std::int64_t>{0, 1, 2, 3, 4, 5}));
  EXPECT_EQ(ended, begun);
}

/// Gradients are reduced in the last pass of a step, or in every one.
TEST(StepOrder, SaysWhichPassesAreReduced) {
  const auto reduced = [](bool sums_every_pass) {
    const std::vector<Pass> passes = passes_of_step(2, 3);
    return std::ranges::count_if(passes, [&](const Pass& p) { return is_reduced(p.ends_step, sums_every_pass); });
  };
  EXPECT_EQ(reduced(false), 1);
  EXPECT_EQ(reduced(true), 6);
}

}  // namespace
}  // namespace ddptrain
