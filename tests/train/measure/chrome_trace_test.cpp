#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "runtime/train/measure/trace.h"
#include "tests/support/mpi_main.h"

namespace ddptrain {
namespace {

TEST(ChromeTrace, CommunicationThatOverlapsHasSeveralThreads) {
  const auto sent = [](const char* name, double begin, double end) {
    return TimelineSpan{name, Lane::communication, begin, end};
  };
  const std::string text = chrome_trace(test_world(), {{"forward", Lane::compute, 1, 9},
                                                       sent("later", 4, 6),
                                                       sent("first", 1, 3),
                                                       sent("beside both", 2, 5),
                                                       sent("last", 6, 7)});
  if (test_world().rank() != 0) return;
  std::map<std::string, int> threads;
  const nlohmann::json trace = nlohmann::json::parse(text);
  for (const auto& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("pid") == 0) threads[event.at("name")] = event.at("tid");
  }
  const std::map<std::string, int> expected = {
      {"forward", 0}, {"first", 1}, {"beside both", 2}, {"later", 1}, {"last", 1}};
  EXPECT_EQ(threads, expected);
}

}  // namespace
}  // namespace ddptrain
