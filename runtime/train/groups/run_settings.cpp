#include "runtime/train/groups/run_settings.h"

#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <map>

#include "runtime/core/error.h"
#include "runtime/core/process/random_id.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

constexpr std::size_t kMostSettings = std::size_t{1} << 16;
constexpr std::string_view kRun = "run\t";  // the first line has the id

std::string text_of(const GroupSettings& settings) {
  std::string text;
  for (const auto& [name, value] : settings) text += fmt::format("{}\t{}\n", printable(name), printable(value, 200));
  return text;
}

std::map<std::string, std::string> settings_in(std::string_view text) {
  std::map<std::string, std::string> settings;
  while (!text.empty()) {
    const std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::size_t tab = line.find('\t');
    if (tab != line.npos) settings[printable(line.substr(0, tab))] = printable(line.substr(tab + 1), 200);
  }
  return settings;
}

std::string_view first_line(std::string_view text) { return text.substr(0, text.find('\n')); }

}  // namespace

std::string new_run_settings(const GroupSettings& settings) {
  return fmt::format("{}{}\n{}", kRun, random_id(), text_of(settings));
}

std::string run_id_of(std::string_view of_run) {
  const std::string_view line = first_line(of_run);
  return line.starts_with(kRun) ? printable(line.substr(kRun.size())) : std::string();
}

void require_same_settings(const GroupSettings& mine, std::string_view of_run, const std::string& name) {
  const std::string_view line = first_line(of_run);
  const bool has_id = line.starts_with(kRun);
  if (has_id && of_run.substr(std::min(line.size() + 1, of_run.size())) == text_of(mine)) return;
  std::map<std::string, std::string> others;
  if (of_run.size() <= kMostSettings) others = settings_in(of_run);
  std::vector<std::string> differences;
  for (const auto& [setting, value] : mine) {
    const auto found = others.find(printable(setting));
    const std::string other = found == others.end() ? "none" : found->second;
    if (other == printable(value, 200)) continue;
    differences.push_back(fmt::format("{}: {} (in the log: {})", setting, printable(value, 200), other));
  }
  if (differences.empty()) differences.push_back("the log's settings are of another version of the program");
  usage_error(
      "the run {} in the log has other settings than this group: {}. Use the same, or another name for a new run.",
      name, fmt::join(differences, "; "));
}

}  // namespace ddptrain
