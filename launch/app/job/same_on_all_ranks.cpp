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

/// What the node of each rank has.
std::vector<std::string> data_of_nodes(const std::vector<HeldData>& of_ranks) {
  std::map<int, SharedHash::Value> of_nodes;
  for (const HeldData& held : of_ranks) of_nodes[held.node] = SharedHash::combined(of_nodes[held.node], held.hash);
  std::vector<std::string> texts;
  for (const HeldData& held : of_ranks) {
    const auto [high, low] = of_nodes[held.node];
    texts.push_back(fmt::format("{} (XXH3 {:016x}{:016x})", held.size, high, low));
  }
  return texts;
}

}  // namespace

void require_same_values(const World& world, const NamedValues& mine) {
  using nlohmann::json;
  const std::string text = json(mine).dump(-1, ' ', false, json::error_handler_t::replace);
  Hash128 hash;
  hash.add(text);
  if (differences(world.all_gather(hash.hex())).empty()) return;
  std::vector<NamedValues> of_ranks;
  for (const std::string& of_rank : world.all_gather(text)) of_ranks.push_back(json::parse(of_rank).get<NamedValues>());
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

std::string data_differences(const std::vector<HeldData>& of_ranks) {
  std::vector<std::string> hosts;
  for (const HeldData& held : of_ranks) hosts.push_back(held.host);
  return differences(data_of_nodes(of_ranks), hosts);
}

std::string require_same_data(const World& world, const DataContent& content) {
  const auto nodes = world.all_gather(std::vector{world.node()});
  const auto hosts = world.all_gather(world.hostname());
  const auto sizes = world.all_gather(content.size);
  const auto hashes = world.all_gather(std::vector{content.hash.value()});
  std::vector<HeldData> of_ranks;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    of_ranks.push_back({nodes[rank], hosts[rank], sizes[rank], hashes[rank]});
  }
  const std::string difference = data_differences(of_ranks);
  world.agree([&] {
    if (difference.empty()) return;
    usage_error("the data is not the same on all hosts: {}. Copy the same files to all of them.", difference);
  });
  return data_of_nodes(of_ranks).front();
}

}  // namespace ddptrain
