#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>

#include "runtime/core/files/memory_file.h"
#include "runtime/core/process/scoped_environment.h"

namespace ddptrain {

/// Choices of NCCL, from its log; "unknown" and 0 if the log does not say.
struct NcclUsage {
  std::string version = "unknown";    ///< Such as 2.28.9.
  std::string algorithm = "unknown";  ///< Algorithm of the largest all-reduce: Ring, Tree, NVLS ..., or Symmetric.
  std::string protocol = "unknown";   ///< LL, LL128, Simple; for Symmetric the kernel, such as RSxLD_AGxST.
  std::string transport = "unknown";  ///< P2P/CUMEM, P2P/IPC, SHM, NET/IB ...; several, most frequent first, with "+".
  int channels = 0;                   ///< Channels of the largest all-reduce, or of the communicator.
};

/// Algorithm and protocol of collectives of one size; see NcclUsage.
struct NcclChoice {
  std::string algorithm;
  std::string protocol;
  int channels = 0;  ///< 0: the log does not tell.
};

/// The part of a log that runs and measurements report. (launch/ddptools/nccl/log.py reads the rest, for ddptopo.)
struct NcclLog {
  std::string version = "unknown";
  int channels = 0;  ///< For collectives; 0: the log does not tell.
  /// A channel with its ranks, and the transport there: P2P/CUMEM, SHM, NET/IB ...
  std::set<std::pair<std::string, std::string>> connections;
  /// By collective and bytes; the last one of each. If NCCL does not name the collective, it is empty.
  std::map<std::pair<std::string, std::int64_t>, NcclChoice> choices;
};

/// Reads a log of NCCL 2.18 to 2.32, of one rank or of several one after the other. Never throws for what the text
/// holds.
NcclLog read_nccl_log(std::istream& text);

NcclUsage usage_of(const NcclLog& log);

/// The NCCL_* variables of the environment (NCCL_VERSION, a label of container images, is none). Ask before
/// NcclLogCapture adds its own.
std::map<std::string, std::string> nccl_environment();

/// Makes NCCL write its log to memory, to learn what it used. To be made (on the rank that asks) before NCCL's first
/// call in this process, and kept while NCCL is used. If the user has set NCCL_DEBUG, it stays as it is, and there is
/// no text. Restores the environment at its end.
class NcclLogCapture {
 public:
  NcclLogCapture();

  std::string text() const;  ///< The text so far.
  NcclLog log() const;       ///< The same, read; transports and choices follow the first all-reduce.

 private:
  std::optional<MemoryFile> file_;
  ScopedEnvironment environment_;
};

}  // namespace ddptrain
