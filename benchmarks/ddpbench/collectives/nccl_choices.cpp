#include "benchmarks/ddpbench/collectives/nccl_choices.h"

#include <utility>
#include <vector>

#include "benchmarks/ddpbench/sizes.h"
#include "runtime/core/error.h"

namespace ddptrain::bench {

namespace {

std::string name_in_log(Collective collective) {
  switch (collective) {
    case Collective::all_reduce:
      return "AllReduce";
    case Collective::reduce_scatter:
      return "ReduceScatter";
    case Collective::all_gather:
      return "AllGather";
    case Collective::broadcast:
      return "Broadcast";
    case Collective::reduce:
      return "Reduce";
    case Collective::all_to_all:
      return "AlltoAll";
    case Collective::send_receive:
      return "SendRecv";
  }
  fail("unknown collective");
}

}  // namespace

void add_nccl(Json& result, const NcclLog& log, Collective collective) {
  const NcclUsage usage = usage_of(log);
  result["nccl"] = {{"version", usage.version}, {"transport", usage.transport}, {"channels", log.channels}};
  for (Json& entry : result["results"]) {
    const auto choice = log.choices.find({name_in_log(collective), entry["bytes"].get<std::int64_t>()});
    if (choice == log.choices.end()) continue;
    entry["algorithm"] = choice->second.algorithm;
    entry["protocol"] = choice->second.protocol;
    entry["channels"] = choice->second.channels;
  }
}

std::string choices_text(const Json& results) {
  std::vector<std::pair<std::string, std::uint64_t>> runs;  // a choice and the largest size that it has
  for (const Json& entry : results) {
    if (!entry.contains("algorithm")) continue;
    const auto choice = entry["algorithm"].get<std::string>() + " " + entry["protocol"].get<std::string>();
    if (runs.empty() || runs.back().first != choice) runs.emplace_back(choice, 0);
    runs.back().second = entry["bytes"];
  }
  std::string text;
  for (const auto& [choice, bytes] : runs) {
    text += (text.empty() ? "" : ", ") + choice + " to " + format_size(bytes);
  }
  return text;
}

}  // namespace ddptrain::bench
