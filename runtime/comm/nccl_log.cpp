#include "runtime/comm/nccl_log.h"

#include <spdlog/spdlog.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <istream>
#include <regex>

namespace ddptrain {

namespace {

/// Older versions write numbers; newer ones capitals.
std::string algorithm_name(const std::string& raw) {
  static constexpr std::array<const char*, 7> kNames = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                        "NVLSTree", "PAT"};
  if (raw.size() == 1 && raw[0] >= '0' && raw[0] <= '6') return kNames[static_cast<std::size_t>(raw[0] - '0')];
  if (raw == "RING") return "Ring";
  if (raw == "TREE") return "Tree";
  return raw;
}

std::string protocol_name(const std::string& raw) {
  static constexpr std::array<const char*, 3> kNames = {"LL", "LL128", "Simple"};
  if (raw.size() == 1 && raw[0] >= '0' && raw[0] <= '2') return kNames[static_cast<std::size_t>(raw[0] - '0')];
  return raw == "SIMPLE" ? "Simple" : raw;
}

/// One pass over a log.
class Reader {
 public:
  void read(const std::string& line) {
    read_version(line);
    read_channels(line);
    read_transport(line);
    read_all_reduce(line);
  }

  NcclUsage result() const {
    NcclUsage usage = usage_;
    if (usage.channels == 0) usage.channels = communicator_channels_;
    std::vector<std::pair<std::string, int>> transports(transports_.begin(), transports_.end());
    std::stable_sort(transports.begin(), transports.end(),
                     [](const auto& a, const auto& b) { return a.second > b.second; });
    for (const auto& [name, count] : transports) {
      usage.transport = usage.transport == "unknown" ? name : usage.transport + "+" + name;
    }
    return usage;
  }

 private:
  void read_version(const std::string& line) {
    static const std::regex kPattern(R"(NCCL version (\d+\.\d+\.\d+))");
    std::smatch match;
    if (line.find("NCCL version") == std::string::npos) return;
    if (std::regex_search(line, match, kPattern)) usage_.version = match[1];
  }

  void read_channels(const std::string& line) {
    static const std::regex kPattern(R"((?:^|\s)(\d{1,4}) coll channels,)");
    std::smatch match;
    if (line.find(" coll channels") == std::string::npos) return;
    if (std::regex_search(line, match, kPattern)) communicator_channels_ = std::stoi(match[1]);
  }

  void read_transport(const std::string& line) {
    static const std::regex kPattern(
        R"( via (?:(P2P/(?:CUMEM|MNNVL|IPC|indirect|direct pointer))|(SHM/|direct shared memory)|((?:NET|COLLNET)/\w+)/))");
    std::smatch match;
    if (line.find("Channel ") == std::string::npos && line.find("CollNet ") == std::string::npos) return;
    if (!std::regex_search(line, match, kPattern)) return;
    ++transports_[match[1].matched ? match[1].str() : match[2].matched ? "SHM" : match[3].str()];
  }

  void read_all_reduce(const std::string& line) {
    static const std::regex kPlain(
        R"(AllReduce: (\d{1,18}) Bytes -> Algo (\w+) proto (\w+) (?:channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}|time ))");
    static const std::regex kSymmetric(
        R"(AllReduce \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (?:AllReduce_)?(\w+) nchannels (\d{1,4})\b)");
    std::smatch match;
    if (line.find("AllReduce") == std::string::npos) return;
    if (std::regex_search(line, match, kPlain)) {
      const int channels = match[4].matched ? std::stoi(match[5]) - std::stoi(match[4]) + 1 : 0;
      keep_largest(std::stoll(match[1]), algorithm_name(match[2]), protocol_name(match[3]), channels);
    } else if (std::regex_search(line, match, kSymmetric)) {
      keep_largest(std::stoll(match[1]), "Symmetric", match[2], std::stoi(match[3]));
    }
  }

  void keep_largest(std::int64_t bytes, const std::string& algorithm, const std::string& protocol, int channels) {
    if (bytes < largest_) return;
    largest_ = bytes;
    usage_.algorithm = algorithm;
    usage_.protocol = protocol;
    usage_.channels = channels;
  }

  NcclUsage usage_;
  std::map<std::string, int> transports_;
  int communicator_channels_ = 0;
  std::int64_t largest_ = 0;
};

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
      std::array<char, 256> host{};
      gethostname(host.data(), host.size() - 1);
      path += std::string(host.data()).substr(0, std::string(host.data()).find('.'));
    } else if (what == 'p') {
      path += std::to_string(getpid());
    } else {
      path += what;
    }
  }
  return path;
}

}  // namespace

NcclUsage parse_nccl_log(std::istream& log) {
  Reader reader;
  for (std::string line; std::getline(log, line);) reader.read(line);
  return reader.result();
}

std::map<std::string, std::string> nccl_environment() {
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (text.rfind("NCCL_", 0) == 0 && equals != std::string::npos) {
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
  file_ = memfd_create("nccl-log", MFD_CLOEXEC);
  if (file_ < 0) {
    spdlog::debug("no memory for NCCL's log; what NCCL uses stays unknown");
    return;
  }
  path_ = "/proc/self/fd/" + std::to_string(file_);
  set_variable("NCCL_DEBUG", "INFO");
  set_variable("NCCL_DEBUG_SUBSYS", "INIT,ENV,GRAPH,TUNING,NET");
  set_variable("NCCL_DEBUG_FILE", path_);
}

NcclLogCapture::~NcclLogCapture() {
  for (const auto& [name, value] : before_) {
    if (value) {
      setenv(name.c_str(), value->c_str(), 1);
    } else {
      unsetenv(name.c_str());
    }
  }
  if (file_ >= 0) close(file_);
}

NcclUsage NcclLogCapture::usage() const {
  std::ifstream log(path_);
  return parse_nccl_log(log);
}

void NcclLogCapture::set_variable(const std::string& name, const std::string& value) {
  const char* old = std::getenv(name.c_str());
  before_.emplace_back(name, old == nullptr ? std::nullopt : std::optional<std::string>(old));
  setenv(name.c_str(), value.c_str(), 1);
}

}  // namespace ddptrain
