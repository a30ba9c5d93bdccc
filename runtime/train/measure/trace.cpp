#include "runtime/train/measure/trace.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"

namespace ddptrain {
namespace {

using Json = nlohmann::ordered_json;

double clock_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Json metadata(const char* kind, int rank, int lane, const std::string& name) {
  return {{"ph", "M"}, {"name", kind}, {"pid", rank}, {"tid", lane}, {"args", {{"name", name}}}};
}

double first_begin(const std::vector<RankTrace>& ranks) {
  double first = std::numeric_limits<double>::infinity();
  for (const RankTrace& trace : ranks) {
    for (const TimelineSpan& span : trace.spans) first = std::min(first, span.begin_seconds);
  }
  return first;
}

Json to_json(int node, const std::string& host, double clock, const std::vector<TimelineSpan>& spans) {
  Json json = {{"node", node}, {"host", host}, {"clock", clock}, {"spans", Json::array()}};
  for (const TimelineSpan& span : spans) {
    json["spans"].push_back({span.name, static_cast<int>(span.lane), span.begin_seconds, span.end_seconds});
  }
  return json;
}

RankTrace from_json(int rank, const Json& json, double clock) {
  RankTrace trace{rank, json.at("host"), {}};
  for (const Json& span : json.at("spans")) {
    trace.spans.push_back({span.at(0), static_cast<Lane>(span.at(1).get<int>()), span.at(2).get<double>() - clock,
                           span.at(3).get<double>() - clock});
  }
  return trace;
}

}  // namespace

std::string chrome_trace(const std::vector<RankTrace>& ranks) {
  const double origin = first_begin(ranks);
  Json events = Json::array();
  for (const RankTrace& trace : ranks) {
    events.push_back(metadata("process_name", trace.rank, 0, fmt::format("rank {} ({})", trace.rank, trace.host)));
    events.push_back(metadata("thread_name", trace.rank, 0, "compute"));
    events.push_back(metadata("thread_name", trace.rank, 1, "communication"));
    for (const TimelineSpan& span : trace.spans) {
      events.push_back({{"ph", "X"},
                        {"name", span.name},
                        {"pid", trace.rank},
                        {"tid", static_cast<int>(span.lane)},
                        {"ts", 1e6 * (span.begin_seconds - origin)},
                        {"dur", 1e6 * (span.end_seconds - span.begin_seconds)}});
    }
  }
  return Json{{"traceEvents", events}, {"displayTimeUnit", "ms"}}.dump();
}

std::vector<RankTrace> gather_trace(const World& world, const std::vector<TimelineSpan>& mine) {
  world.barrier();
  const auto all = world.all_gather(to_json(world.node(), world.hostname(), clock_seconds(), mine).dump());
  if (world.rank() != 0) return {};
  std::vector<Json> parsed;
  std::map<int, double> clocks;  // per node: when its first rank left the barrier
  for (const std::string& text : all) {
    parsed.push_back(Json::parse(text));
    const double clock = parsed.back().at("clock");
    const auto [at, added] = clocks.emplace(parsed.back().at("node").get<int>(), clock);
    if (!added) at->second = std::min(at->second, clock);
  }
  std::vector<RankTrace> traces;
  for (std::size_t rank = 0; rank < parsed.size(); ++rank) {
    traces.push_back(from_json(static_cast<int>(rank), parsed[rank], clocks.at(parsed[rank].at("node").get<int>())));
  }
  return traces;
}

double compute_seconds(const std::vector<TimelineSpan>& spans) {
  std::vector<double> begins, ends;
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

void write_trace(const std::string& path, const std::vector<RankTrace>& ranks) {
  write_file(path, chrome_trace(ranks) + '\n');
}

}  // namespace ddptrain
