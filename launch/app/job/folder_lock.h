#pragma once

#include <string>

#include "runtime/comm/world.h"
#include "runtime/core/files/descriptor.h"

namespace ddptrain {

/// The folder of --checkpoint, in which one run writes at a time. Rank 0 holds a lock on a file in it. The system
/// releases the lock when the process ends, however it ends; after a host was lost, a file server does so later.
class FolderLock {
 public:
  /// Makes the folder if it is missing. If another run holds the lock, waits a while for its end. Error if that run
  /// does not end; UsageError if rank 0 cannot write there, or another rank does not see what rank 0 writes. The same
  /// error on all ranks. Collective.
  FolderLock(const World& world, const std::string& folder);

 private:
  void take(const World& world, const std::string& folder, const std::string& path);

  Descriptor file_;  ///< On rank 0.
};

}  // namespace ddptrain
