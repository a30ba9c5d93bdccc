#pragma once

#include <map>
#include <memory>
#include <string>

#include "runtime/core/memory_file.h"
#include "runtime/core/scoped_environment.h"
#include "runtime/diagnostics/nccl_log_parser.h"

namespace ddptrain {

/// What NCCL says in its log that it used; "unknown" and 0 where the log does not tell.
struct NcclUsage {
  std::string version = "unknown";    ///< Such as 2.28.9.
  std::string algorithm = "unknown";  ///< Of the largest all-reduce: Ring, Tree, NVLS ..., or Symmetric.
  std::string protocol = "unknown";   ///< LL, LL128, Simple; for Symmetric the kernel, such as RSxLD_AGxST.
  std::string transport = "unknown";  ///< P2P/CUMEM, P2P/IPC, SHM, NET/IB ...; several, most frequent first, with "+".
  int channels = 0;                   ///< Of the largest all-reduce, or those that the communicator has.
};

NcclUsage usage_of(const NcclLog& log);

/// The NCCL_* variables of the environment (NCCL_VERSION, a label of container images, is none). Ask before
/// NcclLogCapture adds its own.
std::map<std::string, std::string> nccl_environment();

/// Makes NCCL write its log to memory, to learn what it used. To be made (on the rank that asks) before NCCL's first
/// call in this process, and kept while NCCL is used. A user's own NCCL_DEBUG stays as it is: then the file of their
/// NCCL_DEBUG_FILE is read, if there is one. Its variables of the environment go with it.
class NcclLogCapture {
 public:
  NcclLogCapture();

  std::string text() const;  ///< What is written so far; empty where it cannot be read.
  NcclLog log() const;       ///< The same, read; transports and choices follow the first all-reduce.

 private:
  std::string path_;  // empty: nothing to read
  std::unique_ptr<MemoryFile> file_;
  ScopedEnvironment environment_;
};

}  // namespace ddptrain
