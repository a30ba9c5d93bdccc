#include "launch/same_on_all_ranks.h"

#include <cstring>
#include <map>
#include <sstream>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

std::string hash_of(const std::string& text) {
  Hash128 hash;
  hash.add(text);
  return hash.hex();
}

struct Settings {
  std::vector<std::string> names;
  std::map<std::string, std::string> values;
};

Settings read(const std::string& configuration) {
  Settings settings;
  std::istringstream lines(configuration);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t equals = line.find(" = ");
    settings.names.push_back(line.substr(0, equals));
    settings.values[settings.names.back()] = line.substr(equals + 3);
  }
  return settings;
}

}  // namespace

void require_same_configuration(const World& world, const std::string& configuration) {
  if (differences(world.all_gather(hash_of(configuration))).empty()) return;
  std::vector<Settings> of_ranks;
  for (const std::string& text : world.all_gather(configuration)) of_ranks.push_back(read(text));
  world.agree([&] {
    for (const Settings& some : of_ranks) {
      for (const std::string& name : some.names) {
        std::vector<std::string> values;
        for (const Settings& settings : of_ranks) {
          const auto found = settings.values.find(name);
          values.push_back(found == settings.values.end() ? "unknown" : found->second);
        }
        const std::string difference = differences(values);
        if (difference.empty()) continue;
        usage_error("the ranks differ in {}: {}. Start all ranks with the same program, options and files.", name,
                    difference);
      }
    }
  });
}

namespace {

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

std::string data_differences(const std::vector<HeldData>& of_ranks) {
  std::vector<std::string> hosts;
  for (const HeldData& held : of_ranks) hosts.push_back(held.host);
  return differences(data_of_nodes(of_ranks), hosts);
}

std::string require_same_data(const World& world, const DataContent& content) {
  const auto nodes = world.all_gather(std::to_string(world.node()));
  const auto hosts = world.all_gather(world.hostname());
  const auto sizes = world.all_gather(content.size);
  const SharedHash::Value mine = content.hash.value();
  const auto hashes = world.all_gather({reinterpret_cast<const char*>(mine.data()), sizeof(mine)});
  std::vector<HeldData> of_ranks;
  for (std::size_t rank = 0; rank < nodes.size(); ++rank) {
    HeldData& held = of_ranks.emplace_back(HeldData{std::stoi(nodes[rank]), hosts[rank], sizes[rank]});
    std::memcpy(held.hash.data(), hashes[rank].data(), sizeof(held.hash));
  }
  const std::string difference = data_differences(of_ranks);
  world.agree([&] {
    if (difference.empty()) return;
    usage_error("the data is not the same on all hosts: {}. Copy the same files to all of them.", difference);
  });
  return data_of_nodes(of_ranks).front();
}

}  // namespace ddptrain
