#pragma once

#include "runtime/core/files/descriptor.h"

namespace ddptrain {

enum class FileLock { taken, of_another, unknown };  ///< unknown: the file system has no locks. errno tells why.

/// Takes the lock of an open file, without waiting. It lasts until all copies of the descriptor are closed: at the
/// latest until the process ends, however it ends.
FileLock try_lock(const Descriptor& file);

}  // namespace ddptrain
