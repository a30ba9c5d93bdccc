#include "runtime/diagnostics/nccl_log.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <regex>
#include <string_view>

#include "runtime/core/process/host.h"

namespace ddptrain {

namespace {

constexpr std::array<const char*, 7> kAlgorithms = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                    "NVLSTree", "PAT"};
constexpr std::array<const char*, 3> kProtocols = {"LL", "LL128", "Simple"};

/// One of `names` by its number or, in capitals, itself; other words stay.
template <std::size_t kCount>
std::string name_in(const std::array<const char*, kCount>& names, const std::string& word) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word == std::to_string(i) || strcasecmp(word.c_str(), names[i]) == 0) return names[i];
  }
  return word;
}

/// One pass over a log.
class Reader {
 public:
  /// A line may hold messages of several ranks.
  void read(const std::string& line) {
    const std::string mark = "NCCL INFO ";
    if (line.starts_with("NCCL version ")) read_message(line);
    for (std::size_t at = line.find(mark); at != std::string::npos;) {
      const std::size_t start = at + mark.size();
      at = line.find(mark, start);
      // NCCL's own buffer has 1024 characters.
      read_message(line.substr(start, std::min<std::size_t>(std::min(at, line.size()) - start, 1024)));
    }
  }

  NcclLog log() && {
    if (log_.channels == 0) log_.channels = ring_channels_;
    return std::move(log_);
  }

 private:
  void read_message(const std::string& text) {
    static const std::regex version(R"( *NCCL version (\d{1,5}\.\d{1,5}\.\d{1,5}))");
    static const std::regex ring(R"( *Channel \d{1,4}/(\d{1,4}) *: *\d+ +\d)");
    static const std::regex channels(R"( *(\d{1,4}) coll channels)");
    if (finds(version, text) && log_.version == "unknown") log_.version = found_[1];
    if (finds(ring, text)) ring_channels_ = std::max(ring_channels_, number(1));
    if (finds(channels, text)) log_.channels = std::max(log_.channels, number(1));
    read_connection(text);
    read_choice(text);
  }

  void read_connection(const std::string& text) {
    static const std::regex connection(
        R"( *(Channel \d{1,4}\S* *: \d{1,6}\S* -> \d{1,6}\S*|Coll(?:Net)? \d{1,4}\S* : \d{1,6}(?: \[\w+\])?).*? via )"
        R"((P2P/(?:direct pointer|CUMEM|MNNVL|IPC|indirect)|SHM(?=/\w+/\w)|direct shared memory)"
        R"(|(?:COLL)?NET/[\w -]*(?=/\d)))");
    if (!finds(connection, text)) return;
    log_.connections.emplace(found_[1], found_[2] == "direct shared memory" ? "SHM" : found_[2].str());
  }

  /// Algorithms and protocols are numbers in older versions, capitals in newer ones.
  void read_choice(const std::string& text) {
    static const std::regex algorithm(R"( *(?:([\w-]+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+))"
                                      R"((?: time | channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}))");
    static const std::regex kernel(
        R"( *([\w-]+) \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (?:\1_)?(\w+) nchannels (\d{1,4}))");
    if (finds(kernel, text)) {
      log_.choices[{found_[1], std::stoll(found_[2])}] = {"Symmetric", found_[3], number(4)};
    } else if (finds(algorithm, text)) {
      log_.choices[{found_[1], std::stoll(found_[2])}] = {
          name_in(kAlgorithms, found_[3]), name_in(kProtocols, found_[4]),
          found_[6].matched ? std::max(number(6) - number(5) + 1, 0) : 0};
    }
  }

  bool finds(const std::regex& form, const std::string& text) {
    return std::regex_search(text, found_, form, std::regex_constants::match_continuous);
  }

  int number(std::size_t group) const { return std::stoi(found_[group]); }

  NcclLog log_;
  std::smatch found_;  ///< Match of the last finds(), in the text that finds() was given.
  int ring_channels_ = 0;
};

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

/// As NCCL reads NCCL_DEBUG_FILE: %h is the host, %p the process.
std::string expanded(const std::string& pattern) {
  std::string path;
  for (std::size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '%' || i + 1 == pattern.size()) {
      path += pattern[i];
      continue;
    }
    const char what = pattern[++i];
    if (what == 'h') {
      const std::string host = system_host_name();
      path += host.substr(0, host.find('.'));
    } else if (what == 'p') {
      path += std::to_string(getpid());
    } else {
      path += what;
    }
  }
  return path;
}

}  // namespace

NcclLog read_nccl_log(std::istream& text) {
  Reader reader;
  for (std::string line; std::getline(text, line);) reader.read(line);
  return std::move(reader).log();
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
  if (std::getenv("NCCL_DEBUG") != nullptr) {
    const char* file = std::getenv("NCCL_DEBUG_FILE");
    if (file != nullptr) path_ = expanded(file);
    return;
  }
  file_.emplace("nccl-log");
  path_ = file_->path();
  environment_.set("NCCL_DEBUG", "INFO");
  environment_.set("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,TUNING,NET");
  environment_.set("NCCL_DEBUG_FILE", path_);
}

std::string NcclLogCapture::text() const {
  std::ifstream log(path_);
  return {std::istreambuf_iterator<char>(log), {}};
}

NcclLog NcclLogCapture::log() const {
  std::ifstream log(path_);
  return read_nccl_log(log);
}

}  // namespace ddptrain
