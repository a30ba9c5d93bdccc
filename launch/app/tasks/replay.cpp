#include <cstdio>
#include <numeric>

#include "launch/app/tasks/tasks.h"
#include "runtime/core/text.h"
#include "runtime/outer/record.h"

namespace ddptrain {
namespace {

std::int64_t total(const std::map<std::string, std::int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), std::int64_t{0},
                         [](std::int64_t sum, const auto& count) { return sum + count.second; });
}

std::string listed(const std::map<std::string, std::int64_t>& counts) {
  std::string text;
  for (const auto& [name, count] : counts) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, count);
  return text;
}

}  // namespace

void replay_log(const World& world, const std::string& path) {
  world.agree([&] {
    if (world.rank() != 0) return;
    const OuterReplay replay = about("--replay-log", [&] { return replay_record(path); });
    std::string text = fmt::format("Entries  {} of groups: {}\n", total(replay.applied), listed(replay.applied));
    if (!replay.skipped.empty()) {
      text += fmt::format("Skipped  {}: {}\n", total(replay.skipped), listed(replay.skipped));
    }
    if (replay.is_cut_off) text += "Note     the last entry is cut off and left out\n";
    text += fmt::format("Version  {}\nHash     {}\n", replay.version, replay.hash);
    std::fputs(without_controls(text).c_str(), stdout);
  });
}

}  // namespace ddptrain
