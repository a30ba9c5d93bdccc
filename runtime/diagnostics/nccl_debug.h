#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

/// What the user asked NCCL to log, and how NCCL is asked for more without showing more.

namespace ddptrain {

/// As NCCL reads NCCL_DEBUG and the variables that belong to it.
struct NcclDebug {
  enum class Level : std::uint8_t { nothing, version, warnings, all };

  Level level = Level::nothing;
  std::string name = "INFO";              ///< NCCL's name of the level, if it is `all`: INFO, ABORT or TRACE.
  std::optional<std::string> subsystems;  ///< Of NCCL_DEBUG_SUBSYS.
  std::string file;                       ///< With %h and %p. Empty: standard output.
  bool warning_shows_all = false;         ///< From the first warning on (NCCL_WARN_ENABLE_DEBUG_INFO).
};

NcclDebug nccl_debug_in(const std::map<std::string, std::string>& variables);

/// The files of variables that NCCL reads: NCCL_CONF_FILE or ~/.nccl.conf, then /etc/nccl.conf.
std::vector<std::filesystem::path> nccl_conf_files();

/// `variables`, and those of `files` that no earlier place sets, as NCCL does. A file that cannot be read has none.
std::map<std::string, std::string> with_conf_files(std::map<std::string, std::string> variables,
                                                   const std::vector<std::filesystem::path>& files);

/// What the user asked for in the environment and in NCCL's files.
NcclDebug users_nccl_debug();

/// Values of NCCL_DEBUG and NCCL_DEBUG_SUBSYS with which NCCL logs what the user wants to see and, as far as the rest
/// can be told from it, what a run needs (NcclLog).
struct NcclRequest {
  std::string level;
  std::string subsystems;
  bool adds_tuning = false;  ///< Lines of TUNING are not for the user.
};
NcclRequest nccl_request(const NcclDebug& user);

/// The part of the log that the user wants to see, line by line.
class NcclLogView {
 public:
  explicit NcclLogView(const NcclDebug& user);

  /// `line` as NCCL would have written it for the user, both without line feed (except in between). Nothing if NCCL
  /// would not have written it.
  std::optional<std::string> shown(const std::string& line);

 private:
  bool is_shown(const std::string& line);

  NcclDebug::Level level_;
  bool warning_shows_all_;
  bool hides_tuning_;
  bool last_shown_ = false;     ///< Lines without a mark of NCCL go on with the message before.
  bool blank_pending_ = false;  ///< NCCL writes an empty line before a warning.
  bool version_shown_ = false;
};

/// `file` with the host's name for %h and the process id for %p.
std::string expanded_debug_file(const std::string& file, const std::string& host, int process);

}  // namespace ddptrain
