#include "runtime/diagnostics/nccl_log.h"
#include "runtime/core/host_name.h"

#include <spdlog/spdlog.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string_view>

namespace ddptrain {

namespace {

/// P2P/CUMEM of P2P/CUMEM/read, SHM of SHM/direct/direct, NET/IB of NET/IB/0/GDRDMA.
std::string transport_family(const std::string& via) {
  if (via.rfind("SHM", 0) == 0) return "SHM";
  return via.substr(0, via.find('/', via.find('/') + 1));
}

/// Most frequent first.
std::string transports_of(const NcclLog& log) {
  std::map<std::string, int> counts;
  for (const NcclTransport& transport : log.transports) ++counts[transport_family(transport.via)];
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

NcclUsage usage_of(const NcclLog& log) {
  NcclUsage usage;
  usage.version = log.version;
  usage.transport = transports_of(log);
  usage.channels = log.channels;
  for (const auto& [key, choice] : log.choices) {  // sorted by bytes within a collective: the largest comes last
    if (key.first != "AllReduce" && key.first != kNcclUnnamedCollective) continue;
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
  file_ = std::make_unique<MemoryFile>("nccl-log");
  if (!file_->is_open()) {
    spdlog::debug("no memory for NCCL's log; what NCCL uses stays unknown");
    return;
  }
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
