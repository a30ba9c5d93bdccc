#pragma once

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ddptrain {

/// What a file of --metrics holds.
inline std::vector<nlohmann::json> json_lines(const std::string& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

/// The last line; throws where there is none.
inline nlohmann::json summary_in(const std::string& path) {
  const auto lines = json_lines(path);
  return lines.at(lines.size() - 1);
}

}  // namespace ddptrain
