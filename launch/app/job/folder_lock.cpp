#include "launch/app/job/folder_lock.h"

#include <fcntl.h>
#include <spdlog/spdlog.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <thread>

#include "runtime/core/error.h"
#include "runtime/core/files/file_lock.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/text.h"
#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::seconds;

/// A killed process takes a moment to end. A file server releases the locks of a lost host after a minute or two.
constexpr seconds kPatience(10), kPatienceWithHosts(150);

/// Whether this process holds the lock from now on. A file system without locks counts as one where it does.
bool takes_lock(const Descriptor& file, const std::string& path) {
  const FileLock lock = try_lock(file);
  if (lock == FileLock::unknown) {
    spdlog::warn("{} cannot be locked ({}): make sure that no other run writes there", path, std::strerror(errno));
  }
  return lock != FileLock::of_another;
}

void write(int file, const std::string& path, const std::string& text) {
  if (ftruncate(file, 0) == 0 && pwrite(file, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) &&
      fsync(file) == 0) {
    return;
  }
  usage_error("--checkpoint: {} cannot be written: {}", path, std::strerror(errno));
}

}  // namespace

FolderLock::FolderLock(const World& world, const std::string& folder) {
  const std::string path = (std::filesystem::path(folder) / ".lock").string();
  world.agree([&] {
    if (world.rank() != 0) return;
    require_writable_folder("--checkpoint", folder);
    file_ = Descriptor(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file_) usage_error("--checkpoint: {} cannot be opened: {}", path, std::strerror(errno));
  });
  take(world, folder, path);
  const std::string token = world.all_gather(fmt::format("process {} on {}", getpid(), world.hostname())).front();
  world.agree([&] {
    if (world.rank() == 0) write(file_.get(), path, token + "\n");
  });
  world.agree([&] {
    if (printable(first_line(path)) == token) return;
    usage_error(
        "--checkpoint {}: rank {} on {} does not see what rank 0 writes there ({}). Give a folder of a file system "
        "that all hosts share.",
        folder, world.rank(), world.hostname(), token);
  });
}

/// The ranks wait together, so that none of them seems to hang.
void FolderLock::take(const World& world, const std::string& folder, const std::string& path) {
  const auto locked = [&] { return world.min(world.rank() != 0 || takes_lock(file_, path) ? 1.0 : 0.0) > 0.0; };
  if (locked()) return;
  const std::string holder = printable(first_line(path));
  const bool of_this_host = holder.ends_with(" on " + world.hostname());
  const seconds patience = of_this_host ? kPatience : kPatienceWithHosts;
  const std::string text = fmt::format("--checkpoint {}: another run ({}) writes there", folder, holder);
  if (world.rank() == 0) spdlog::warn("{}; waiting {} s for its end", text, patience.count());
  const auto end = Clock::now() + patience;
  while (!locked()) {
    world.agree([&] {
      if (world.rank() != 0 || Clock::now() < end) return;
      const std::string lost = of_this_host ? "" : fmt::format(" If its host was lost, remove {}.", path);
      fail("{}. Wait for its end, or give another folder.{}", text, lost);
    });
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

}  // namespace ddptrain
