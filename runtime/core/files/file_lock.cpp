#include "runtime/core/files/file_lock.h"

#include <sys/file.h>

#include <cerrno>

namespace ddptrain {

FileLock try_lock(const Descriptor& file) {
  if (flock(file.get(), LOCK_EX | LOCK_NB) == 0) return FileLock::taken;
  return errno == EWOULDBLOCK || errno == EINTR ? FileLock::of_another : FileLock::unknown;
}

}  // namespace ddptrain
