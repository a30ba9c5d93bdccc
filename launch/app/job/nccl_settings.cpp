#include "launch/app/job/nccl_settings.h"

#include <fmt/format.h>

#include <algorithm>

#include "launch/app/flags/parse_flags.h"

namespace ddptrain {

std::vector<std::string> unknown_nccl_settings(const std::map<std::string, std::string>& settings,
                                               const std::vector<std::string>& known, const std::string& nccl_version) {
  std::vector<std::string> lines;
  if (known.empty()) return lines;
  for (const auto& [name, value] : settings) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    lines.push_back(fmt::format("NCCL {} does not read {}{}", nccl_version, name,
                                meant.empty() ? " (a plugin may)" : ", did you mean " + meant + "?"));
  }
  return lines;
}

}  // namespace ddptrain
