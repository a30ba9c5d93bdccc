#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "runtime/core/error.h"
#include "runtime/diagnostics/nccl_log_report.h"

namespace ddptrain {

namespace {

using Environment = std::map<std::string, std::string>;

bool starts_with(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

/// Of the whole job, for the rules: what the log says counts, where it says something.
class Rules {
 public:
  Rules(const NcclLog& log, const Environment& environment, bool nvlink_all_to_all)
      : log_(log), settings_(log.environment), nvlink_all_to_all_(nvlink_all_to_all || log.has_nvswitch) {
    settings_.insert(environment.begin(), environment.end());
  }

  std::vector<IneffectiveSetting> found(const Environment& environment) {
    p2p_level();
    algorithm_and_protocol();
    symmetric_kernels();
    network();
    nvls();
    never_mentioned(environment);
    return std::move(found_);
  }

 private:
  const std::string* value_of(const std::string& name) const {
    const auto setting = settings_.find(name);
    return setting == settings_.end() ? nullptr : &setting->second;
  }

  void add(const std::string& name, const std::string& value, const std::string& why) {
    if (told_.insert(name).second) found_.push_back({name, value, why});
  }

  void p2p_level() {
    const std::string* level = value_of("NCCL_P2P_LEVEL");
    if (level == nullptr || level->find(kNcclValueSeparator) != std::string::npos) return;
    const std::string* disabled = value_of("NCCL_P2P_DISABLE");
    if (disabled != nullptr && *disabled == "1") {
      add("NCCL_P2P_LEVEL", *level, "NCCL_P2P_DISABLE=1 turns P2P off at every level");
    } else if (log_.nodes > 0 && log_.nodes == log_.ranks) {
      add("NCCL_P2P_LEVEL", *level, "no two ranks share a node, so there is no P2P");
    } else if (nvlink_all_to_all_ && *level != "LOC" && *level != "0") {
      add("NCCL_P2P_LEVEL", *level, "all GPUs are joined by NVLink, which every level but LOC allows: same as without");
    }
  }

  void algorithm_and_protocol() {
    for (const auto& [name, member] :
         {std::pair{"NCCL_ALGO", &NcclChoice::algorithm}, {"NCCL_PROTO", &NcclChoice::protocol}}) {
      const std::string* value = value_of(name);
      if (value == nullptr) continue;
      const std::set<std::string> used = used_by_all_reduces(member);
      if (used_symmetric()) {
        add(name, *value, "symmetric-memory kernels ran, which follow neither NCCL_ALGO nor NCCL_PROTO");
      } else if (is_one_name(*value) && !used.empty() && !contains(used, *value)) {
        add(name, *value, fmt::format("all all-reduces in the log used {}", fmt::join(used, ", ")));
      }
    }
  }

  static bool is_one_name(const std::string& value) {
    return !value.empty() &&
           std::all_of(value.begin(), value.end(), [](unsigned char c) { return std::isalnum(c) != 0; });
  }

  static bool contains(const std::set<std::string>& used, const std::string& value) {
    return std::any_of(used.begin(), used.end(), [&](const auto& name) { return lower(name) == lower(value); });
  }

  std::set<std::string> used_by_all_reduces(std::string NcclChoice::*member) const {
    std::set<std::string> used;
    for (const auto& [key, choice] : log_.choices) {
      if (key.first == "AllReduce") used.insert(choice.*member);
    }
    return used;
  }

  bool used_symmetric() const {
    return !log_.choices.empty() && std::all_of(log_.choices.begin(), log_.choices.end(), [](const auto& entry) {
      return entry.second.algorithm == "Symmetric";
    });
  }

  /// They take their number of thread blocks from NCCL_MIN_CTAS and NCCL_MAX_CTAS, and use no buffers.
  void symmetric_kernels() {
    if (!used_symmetric()) return;
    for (const char* name : {"NCCL_NTHREADS", "NCCL_BUFFSIZE", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS"}) {
      const std::string* value = value_of(name);
      if (value != nullptr) add(name, *value, "symmetric-memory kernels ran, which do not use it");
    }
  }

  void network() {
    const bool uses_network = std::any_of(log_.transports.begin(), log_.transports.end(), [](const auto& transport) {
      return transport.via.find("NET/") != std::string::npos;
    });
    if (log_.nodes != 1 || uses_network) return;
    for (const auto& [name, value] : settings_) {
      const bool of_network = starts_with(name, "NCCL_IB_") || starts_with(name, "NCCL_NET_") || name == "NCCL_NET" ||
                              name == "NCCL_CROSS_NIC" || name == "NCCL_NSOCKS_PERTHREAD" ||
                              name == "NCCL_SOCKET_NTHREADS";
      if (of_network) add(name, value, "all ranks share a node: nothing goes over the network");
    }
  }

  void nvls() {
    const std::string* enabled = value_of("NCCL_NVLS_ENABLE");
    if (enabled != nullptr && *enabled != "0" && log_.nvls_channels == 0) {
      add("NCCL_NVLS_ENABLE", *enabled, "NCCL made no NVLS channels");
    }
  }

  void never_mentioned(const Environment& environment) {
    // Of the log itself, and what the log cannot mention.
    static constexpr std::array<const char*, 5> kSilent = {"NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE",
                                                           "NCCL_DEBUG_TIMESTAMP_FORMAT", "NCCL_CONF_FILE"};
    for (const auto& [name, value] : environment) {
      const bool silent = std::find(kSilent.begin(), kSilent.end(), name) != kSilent.end();
      if (silent || log_.environment.count(name) > 0) continue;
      add(name, value, "NCCL's log never mentions it: misspelt, unknown to this version, or not needed in this job");
    }
  }

  const NcclLog& log_;
  Environment settings_;
  bool nvlink_all_to_all_;
  std::set<std::string> told_;
  std::vector<IneffectiveSetting> found_;
};

}  // namespace

std::vector<IneffectiveSetting> ineffective_settings(const NcclLog& log, const Environment& environment,
                                                     bool nvlink_all_to_all) {
  return Rules(log, environment, nvlink_all_to_all).found(environment);
}

}  // namespace ddptrain
