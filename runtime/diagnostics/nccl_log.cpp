#include "runtime/diagnostics/nccl_log.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <regex>
#include <sstream>
#include <string_view>
#include <vector>

namespace ddptrain {

namespace {

/// One of `names` by its number or, in capitals, itself; other words stay.
std::string name_in(const std::vector<const char*>& names, const std::string& word) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word == std::to_string(i) || strcasecmp(word.c_str(), names[i]) == 0) return names[i];
  }
  return word;
}

/// Algorithms and protocols are numbers in older versions, capitals in newer ones.
void read_message(const std::string& text, NcclLog& log) {
  static const std::vector algorithms = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
  static const std::vector protocols = {"LL", "LL128", "Simple"};
  static const std::regex version(R"( *NCCL version (\d{1,5}\.\d{1,5}\.\d{1,5}))");
  static const std::regex channels(R"( *(\d{1,4}) coll channels)");
  static const std::regex connection(
      R"( *(Channel \d{1,4}\S* *: \d{1,6}\S* -> \d{1,6}\S*|Coll(?:Net)? \d{1,4}\S* : \d{1,6}(?: \[\w+\])?).*? via )"
      R"((P2P/(?:direct pointer|CUMEM|MNNVL|IPC|indirect)|SHM|direct shared memory|(?:COLL)?NET/[\w -]*))");
  static const std::regex kernel(
      R"( *([\w-]+) \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (?:\1_)?(\w+) nchannels (\d{1,4}))");
  static const std::regex algorithm(R"( *(?:([\w-]+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+))"
                                    R"((?: time | channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}))");
  std::smatch found;
  const auto is = [&](const std::regex& form) {
    return std::regex_search(text, found, form, std::regex_constants::match_continuous);
  };
  const auto number = [&](std::size_t group) { return std::stoi(found[group]); };
  if (is(version)) {
    if (log.version == "unknown") log.version = found[1];
  } else if (is(channels)) {
    log.channels = std::max(log.channels, number(1));
  } else if (is(connection)) {
    log.connections.emplace(found[1], found[2] == "direct shared memory" ? "SHM" : found[2].str());
  } else if (is(kernel)) {
    log.choices[{found[1], std::stoll(found[2])}] = {"Symmetric", found[3], number(4)};
  } else if (is(algorithm)) {
    log.choices[{found[1], std::stoll(found[2])}] = {name_in(algorithms, found[3]), name_in(protocols, found[4]),
                                                     found[6].matched ? std::max(number(6) - number(5) + 1, 0) : 0};
  }
}

/// Most frequent first.
std::string transports_of(const NcclLog& log) {
  std::map<std::string, int> counts;
  for (const auto& [channel, transport] : log.connections) ++counts[transport];
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted) text += (text.empty() ? "" : "+") + name;
  return text.empty() ? "unknown" : text;
}

}  // namespace

NcclLog read_nccl_log(std::istream& text) {
  const std::string mark = "NCCL INFO ";
  NcclLog log;
  for (std::string line; std::getline(text, line) && !text.eof();) {  // without a last line that is cut
    const std::size_t at = line.find(mark);
    read_message(at == std::string::npos ? line : line.substr(at + mark.size()), log);
  }
  return log;
}

NcclUsage usage_of(const NcclLog& log) {
  NcclUsage usage;
  usage.version = log.version;
  usage.transport = transports_of(log);
  usage.channels = log.channels;
  for (const auto& [key, choice] : log.choices) {  // sorted by bytes within a collective: the largest comes last
    if (key.first != "AllReduce" && !key.first.empty()) continue;
    usage.algorithm = choice.algorithm;
    usage.protocol = choice.protocol;
    usage.channels = choice.channels > 0 ? choice.channels : log.channels;
  }
  return usage;
}

std::map<std::string, std::string> nccl_environment() {
  constexpr std::string_view kLabel = "NCCL_VERSION=";  // of NVIDIA's container images; NCCL does not read it
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("NCCL_") && !text.starts_with(kLabel) && equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

NcclLogCapture::NcclLogCapture() {
  if (std::getenv("NCCL_DEBUG") != nullptr) return;
  file_.emplace("nccl-log");
  environment_.set("NCCL_DEBUG", "INFO");
  environment_.set("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,TUNING,NET");
  environment_.set("NCCL_DEBUG_FILE", file_->path());
}

std::string NcclLogCapture::text() const { return file_ ? file_->text() : ""; }

NcclLog NcclLogCapture::log() const {
  std::istringstream log(text());
  return read_nccl_log(log);
}

}  // namespace ddptrain
