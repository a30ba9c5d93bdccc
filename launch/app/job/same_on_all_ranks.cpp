#include "launch/app/job/same_on_all_ranks.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

/// "unknown" if the rank has no such value.
std::string value_of(const NamedValues& values, const std::string& name) {
  const auto found = std::ranges::find(values, name, &NamedValues::value_type::first);
  return found == values.end() ? "unknown" : found->second;
}

}  // namespace

void require_same_values(const World& world, const NamedValues& mine) {
  using nlohmann::json;
  const auto texts = world.all_gather(json(mine).dump(-1, ' ', false, json::error_handler_t::replace));
  if (differences(texts).empty()) return;
  std::vector<NamedValues> of_ranks;
  for (const std::string& text : texts) of_ranks.push_back(json::parse(text).get<NamedValues>());
  world.agree([&] {
    for (const NamedValues& some : of_ranks) {
      for (const auto& [name, value] : some) {
        std::vector<std::string> values;
        for (const NamedValues& of_rank : of_ranks) values.push_back(value_of(of_rank, name));
        const std::string difference = differences(values);
        if (difference.empty()) continue;
        usage_error("the ranks differ in {}: {}. Start all ranks with the same program, options and files.", name,
                    difference);
      }
    }
  });
}

std::vector<std::string> data_of_nodes(const std::vector<int>& nodes, const std::vector<std::string>& sizes,
                                       const std::vector<SharedHash::Value>& hashes) {
  std::map<int, SharedHash::Value> of_nodes;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    of_nodes[nodes[rank]] = SharedHash::combined(of_nodes[nodes[rank]], hashes[rank]);
  }
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    const auto [high, low] = of_nodes[nodes[rank]];
    texts.push_back(fmt::format("{} (XXH3 {:016x}{:016x})", sizes[rank], high, low));
  }
  return texts;
}

std::string require_same_data(const World& world, const DataContent& content) {
  // One after another: the order in which arguments of a call are evaluated is not defined.
  const auto nodes = world.all_gather(std::vector{world.node()});
  const auto sizes = world.all_gather(content.size);
  const auto hashes = world.all_gather(std::vector{content.hash.value()});
  const std::vector<std::string> data = data_of_nodes(nodes, sizes, hashes);
  const std::string difference = differences(data, world.all_gather(world.hostname()));
  world.agree([&] {
    if (difference.empty()) return;
    usage_error("the data is not the same on all hosts: {}. Copy the same files to all of them.", difference);
  });
  return data.front();
}

}  // namespace ddptrain
