#include "launch/same_configuration.h"

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
        usage_error("the ranks differ in {}: {}. Start all ranks with the same program, options and --config file.",
                    name, difference);
      }
    }
  });
}

}  // namespace ddptrain
