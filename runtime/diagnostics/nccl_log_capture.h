#pragma once

#include <memory>
#include <string>

#include "runtime/core/files/memory_file.h"
#include "runtime/core/process/scoped_environment.h"
#include "runtime/diagnostics/nccl_debug.h"
#include "runtime/diagnostics/nccl_log.h"

namespace ddptrain {

/// Makes NCCL write its log to memory, to learn what it used. To be made (on the rank that asks) before NCCL's first
/// call in this process, and kept while NCCL is used. A thread copies what the user wants to see to where the user
/// wants it: line by line, within a fraction of a second, so that the log of a run that hangs or aborts is seen, too.
/// Restores the environment at its end.
class NcclLogCapture {
 public:
  explicit NcclLogCapture(const NcclDebug& user = users_nccl_debug());
  ~NcclLogCapture();  ///< Copies the rest.

  /// The whole text so far. Only if the user sees nothing: what has been copied is dropped.
  std::string text() const;
  NcclLog log() const;  ///< Transports and choices follow the first all-reduce.

 private:
  class Copier;

  MemoryFile file_;
  std::unique_ptr<Copier> copier_;  ///< Null if the user sees nothing.
  ScopedEnvironment environment_;
};

}  // namespace ddptrain
