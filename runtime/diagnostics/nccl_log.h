#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <memory>
#include <string>
#include <utility>

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

/// The part of a log that runs and measurements report, of the first communicator. If lines contradict each other, the
/// first counts. (launch/ddptools/nccl/log.py reads the rest, for ddptopo.)
struct NcclLog {
  std::string version = "unknown";
  int ranks = 0;     ///< 0: the log does not tell.
  int channels = 0;  ///< For collectives; 0: the log does not tell.
  /// By channel and its ranks: the transport there: P2P/CUMEM, SHM, NET/IB ... Not those of which nothing tells whether
  /// they are the first communicator's.
  std::map<std::string, std::string> connections;
  /// By collective and bytes. If NCCL does not name the collective, it is empty.
  std::map<std::pair<std::string, std::int64_t>, NcclChoice> choices;
};

/// Reads a log of NCCL 2.18 to 2.32, of one rank or of several one after the other, line by line. Never throws for what
/// a line holds.
class NcclLogReader {
 public:
  NcclLogReader();
  ~NcclLogReader();
  void read(const std::string& line);  ///< Without its line feed.
  NcclLog log() const;                 ///< Of the lines so far.

 private:
  class Reader;
  std::unique_ptr<Reader> reader_;
};

/// Reads a whole log, without a last line that is cut.
NcclLog read_nccl_log(std::istream& text);

NcclUsage usage_of(const NcclLog& log);

/// The NCCL_* variables of the environment (NCCL_VERSION, a label of container images, is none). Ask before
/// NcclLogCapture adds its own.
std::map<std::string, std::string> nccl_environment();

}  // namespace ddptrain
