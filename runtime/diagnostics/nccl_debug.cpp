#include "runtime/diagnostics/nccl_debug.h"

#include <pwd.h>
#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <fstream>
#include <regex>
#include <utility>

#include "runtime/diagnostics/nccl_log.h"

namespace ddptrain {
namespace {

using Level = NcclDebug::Level;

/// What a run reads: transports (INIT) and choices (TUNING). The rest is for messages about failures.
constexpr const char* kOurSubsystems = "INIT,ENV,GRAPH,TUNING,NET";
constexpr const char* kDefaultSubsystems = "INIT,BOOTSTRAP,ENV";
constexpr const char* kTuning = "TUNING";

bool same(const std::string& a, const char* b) { return strcasecmp(a.c_str(), b) == 0; }

std::string upper(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::toupper(c); });
  return text;
}

/// The names of a list, between commas.
std::vector<std::string> names_in(const std::string& list) {
  std::vector<std::string> names;
  for (std::size_t begin = 0; begin <= list.size();) {
    const std::size_t end = std::min(list.find(',', begin), list.size());
    if (end > begin) names.push_back(upper(list.substr(begin, end - begin)));
    begin = end + 1;
  }
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

bool contains(const std::vector<std::string>& names, const char* name) {
  return std::find(names.begin(), names.end(), name) != names.end();
}

/// A line that NCCL writes for TUNING alone: a choice, or a row of the table of its cost model.
bool is_of_tuning(const std::string& line) {
  static const std::regex table(
      R"(NCCL INFO +(Latency/AlgBw|Algorithm|Protocol|Max NThreads|Broadcast|Reduce|AllGather|ReduceScatter|AllReduce) *\|)");
  return line.find(" Bytes -> Algo ") != std::string::npos || line.find(" Bytes -> Kernel ") != std::string::npos ||
         std::regex_search(line, table);
}

/// "NCCL version 2.28.9+cuda13.0" of a line; empty: another line.
std::string version_in(const std::string& line) {
  static const std::regex form(R"(NCCL version \d+\.\d+\.\d+\S*)");
  std::smatch found;
  return std::regex_search(line, found, form) ? found[0].str() : "";
}

}  // namespace

NcclDebug nccl_debug_in(const std::map<std::string, std::string>& variables) {
  const auto value = [&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? std::string() : found->second;
  };
  NcclDebug debug;
  const std::string level = value("NCCL_DEBUG");
  if (same(level, "VERSION")) debug.level = Level::version;
  if (same(level, "WARN")) debug.level = Level::warnings;
  if (same(level, "INFO") || same(level, "ABORT") || same(level, "TRACE")) {
    debug.level = Level::all;
    debug.name = upper(level);
  }
  if (variables.count("NCCL_DEBUG_SUBSYS") != 0) debug.subsystems = value("NCCL_DEBUG_SUBSYS");
  if (debug.level != Level::version) debug.file = value("NCCL_DEBUG_FILE");
  debug.warning_shows_all = std::atoi(value("NCCL_WARN_ENABLE_DEBUG_INFO").c_str()) != 0;
  return debug;
}

std::vector<std::filesystem::path> nccl_conf_files() {
  std::vector<std::filesystem::path> files;
  const char* chosen = std::getenv("NCCL_CONF_FILE");
  const passwd* user = getpwuid(getuid());
  if (chosen != nullptr && *chosen != '\0') {
    files.emplace_back(chosen);
  } else if (user != nullptr && user->pw_dir != nullptr) {
    files.push_back(std::filesystem::path(user->pw_dir) / ".nccl.conf");
  }
  files.emplace_back("/etc/nccl.conf");
  return files;
}

std::map<std::string, std::string> with_conf_files(std::map<std::string, std::string> variables,
                                                   const std::vector<std::filesystem::path>& files) {
  for (const std::filesystem::path& path : files) {
    std::ifstream file(path);
    for (std::string line; std::getline(file, line);) {
      const std::size_t equals = line.find('=');
      if (line.starts_with('#') || equals == std::string::npos) continue;
      variables.try_emplace(line.substr(0, equals), line.substr(equals + 1));
    }
  }
  return variables;
}

NcclDebug users_nccl_debug() { return nccl_debug_in(with_conf_files(nccl_environment(), nccl_conf_files())); }

NcclRequest nccl_request(const NcclDebug& user) {
  if (user.level != Level::all) return {"INFO", kOurSubsystems, false};
  const std::string wanted = user.subsystems.value_or(kDefaultSubsystems);
  const bool inverted = wanted.starts_with('^');
  std::vector<std::string> names = names_in(wanted.substr(inverted ? 1 : 0));
  const bool has_tuning = inverted ? !contains(names, kTuning) && !contains(names, "ALL")
                                   : contains(names, kTuning) || contains(names, "ALL");
  if (has_tuning) return {user.name, wanted, false};
  if (!inverted) {
    names.emplace_back(kTuning);
    return {user.name, joined(names), true};
  }
  if (contains(names, "ALL")) return {user.name, kTuning, true};
  std::erase(names, kTuning);
  return {user.name, names.empty() ? "ALL" : "^" + joined(names), true};
}

NcclLogView::NcclLogView(const NcclDebug& user)
    : level_(user.level),
      warning_shows_all_(user.warning_shows_all),
      hides_tuning_(user.level == Level::all && nccl_request(user).adds_tuning) {}

bool NcclLogView::is_shown(const std::string& line) {
  const bool warns = line.find(" NCCL WARN ") != std::string::npos;
  const bool marked = warns || line.find("NCCL INFO ") != std::string::npos ||
                      line.find("NCCL TRACE ") != std::string::npos || line.find("NCCL CALL ") != std::string::npos;
  if (!marked) return last_shown_;
  if (level_ == Level::all) return !(hides_tuning_ && is_of_tuning(line));
  if (level_ != Level::warnings || !warns) return false;
  if (warning_shows_all_) level_ = Level::all;
  return true;
}

std::optional<std::string> NcclLogView::shown(const std::string& line) {
  if (level_ == Level::nothing) return std::nullopt;
  if (level_ != Level::all) {
    if (const std::string version = version_in(line); !version.empty()) {
      return std::exchange(version_shown_, true) ? std::nullopt : std::optional(version);
    }
    if (line.empty()) {
      blank_pending_ = true;
      return std::nullopt;
    }
  }
  last_shown_ = is_shown(line) || (level_ == Level::all && line.empty());
  const bool after_blank = std::exchange(blank_pending_, false);
  if (!last_shown_) return std::nullopt;
  return after_blank ? "\n" + line : line;
}

std::string expanded_debug_file(const std::string& file, const std::string& host, int process) {
  std::string name;
  for (std::size_t i = 0; i < file.size(); ++i) {
    if (file[i] != '%' || i + 1 == file.size()) {
      name += file[i];
      continue;
    }
    const char kind = file[++i];
    name += kind == 'h' ? host : kind == 'p' ? std::to_string(process) : kind == '%' ? "%" : std::string("%") + kind;
  }
  return name;
}

}  // namespace ddptrain
