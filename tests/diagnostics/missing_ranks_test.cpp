#include "runtime/diagnostics/missing_ranks.h"

#include <gtest/gtest.h>

#include <cstring>
#include <string>
#include <vector>

namespace ddptrain {
namespace {

Beat computing(float seconds) {
  Beat beat;
  beat.steps = beat.device_steps = 20;
  beat.collectives = 118;
  beat.seconds = seconds;
  std::strcpy(beat.phase, "evaluation");
  return beat;
}

Beat waiting(float seconds, std::uint64_t sequence) {
  Beat beat = computing(seconds);
  beat.collectives = beat.sequence = sequence;
  std::strcpy(beat.collective, "reduction");
  std::strcpy(beat.waiting_for, "reduction");
  return beat;
}

PeerState answers(const std::string& name, const Beat& last) {
  return {.name = name, .heard = true, .answers = true, .heard_lately = true, .last = last};
}

PeerState silent(const std::string& name, const Beat& last, double seconds_ago, bool lately = false) {
  return {.name = name, .heard = true, .heard_lately = lately, .seconds_ago = seconds_ago, .last = last};
}

const Beat kOwn = waiting(3.0f, 118);

/// A rank that was stopped and goes on does not hide the one that hangs.
TEST(MissingRanks, TheRankThatHangsIsNamedBeforeThoseThatDoNotAnswer) {
  EXPECT_EQ(
      missing_ranks(kOwn, {silent("rank 0", waiting(0.1f, 118), 3.6), answers("rank 2", waiting(3.0f, 118)),
                           answers("rank 3", computing(4.9f))}),
      "Missing: rank 3 has not entered a collective for 4.9 s (evaluation, step 20); rank 0 does not answer, last "
      "heard of 3.6 s ago waiting in reduction (collective 118) (evaluation, step 20).");
}

TEST(MissingRanks, AllGroupsAreNamed) {
  PeerState ended = answers("rank 4", waiting(0.0f, 118));
  ended.ended = true;
  const std::string text = missing_ranks(kOwn, {{.name = "rank 1"},
                                                answers("rank 2", waiting(2.0f, 117)),
                                                silent("rank 3", computing(0.1f), 3.5),
                                                ended,
                                                silent("rank 5", waiting(1.0f, 118), 2.3, true),
                                                answers("rank 6", computing(3.5f))});
  std::size_t at = 0;
  for (const char* part : {"Missing: rank 6 has not entered a collective for 3.5 s", "rank 4 has ended",
                           "rank 3 does not answer, last heard of 3.5 s ago busy with its own work", "rank 2 is behind",
                           "rank 5 does not answer, last heard of 2.3 s ago", "No answer has ever come from rank 1."}) {
    const std::size_t found = text.find(part, at);
    ASSERT_NE(found, std::string::npos) << part << " in " << text;
    at = found;
  }
}

/// Its watchdog had no core to answer.
TEST(MissingRanks, ARankThatHangsAndDoesNotAnswerIsNamedFirst) {
  EXPECT_EQ(
      missing_ranks(kOwn, {silent("rank 0", waiting(0.2f, 118), 2.4, true), silent("rank 1", computing(2.6f), 2.3)}),
      "Missing: rank 1 has not entered a collective for 4.9 s and does not answer, last heard of 2.3 s ago "
      "(evaluation, step 20); rank 0 does not answer, last heard of 2.4 s ago waiting in reduction (collective "
      "118) (evaluation, step 20).");
}

TEST(MissingRanks, ARankThatHasJustBegunToComputeIsNamedOnlyIfThereIsNoOther) {
  const PeerState busy = answers("rank 1", computing(0.1f));
  EXPECT_EQ(missing_ranks(kOwn, {busy, silent("rank 2", waiting(0.0f, 118), 3.5)}).find("rank 1"), std::string::npos);
  EXPECT_EQ(missing_ranks(kOwn, {busy}),
            "Missing: rank 1 has not entered a collective for 0.1 s (evaluation, step 20).");
}

/// None of them was asked in time: what they have called tells them apart.
TEST(MissingRanks, OfRanksThatDoNotAnswerTheOneThatHasCalledFewerCollectivesComesFirst) {
  Beat hangs = computing(0.7f);
  hangs.collectives = 117;
  const std::string text =
      missing_ranks(kOwn, {silent("rank 1", waiting(0.9f, 118), 2.3, true), silent("rank 2", hangs, 2.2, true)});
  EXPECT_EQ(text.find("Missing: rank 2 does not answer, last heard of 2.2 s ago busy"), 0u) << text;
  EXPECT_NE(text.find("; rank 1 does not answer"), std::string::npos) << text;
}

/// It answers, and has not called the collective for which the others wait: it is no slow rank that is missing.
TEST(MissingRanks, ARankThatComputesAndIsBehindIsNamedBeforeThoseThatAreSlowToAnswer) {
  Beat behind = computing(0.4f);
  behind.collectives = 117;
  EXPECT_EQ(
      missing_ranks(kOwn, {silent("rank 1", waiting(0.9f, 118), 2.3, true), answers("rank 2", behind)}),
      "Missing: rank 2 has not entered a collective for 0.4 s (evaluation, step 20); rank 1 does not answer, last "
      "heard of 2.3 s ago waiting in reduction (collective 118) (evaluation, step 20).");
}

TEST(MissingRanks, OfSeveralThatHangTheFirstToHangComesFirst) {
  const std::string text = missing_ranks(
      kOwn, {answers("rank 1", computing(3.1f)), answers("rank 2", computing(9.0f)), answers("rank 3", computing(3.2f)),
             answers("rank 4", computing(3.3f)), answers("rank 5", computing(3.4f))});
  EXPECT_EQ(text.find("Missing: rank 2 "), 0u) << text;
  EXPECT_NE(text.find("rank 3 has not entered a collective for 3.2 s (evaluation, step 20); and 1 more."),
            std::string::npos)
      << text;
}

/// Stages call different numbers of collectives.
TEST(MissingRanks, OnlyRanksThatCallTheSameCollectivesAreBehind) {
  PeerState other_stage = answers("rank 1", waiting(3.0f, 57));
  other_stage.calls_the_same = false;
  EXPECT_EQ(missing_ranks(kOwn, {other_stage}), "All other ranks answer, and none is known to be behind.");
}

}  // namespace
}  // namespace ddptrain
