#pragma once

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

namespace ddptrain {

/// While it lives, standard error is a pseudo-terminal of some columns.
class Terminal {
 public:
  explicit Terminal(unsigned short columns, const char* kind = "xterm") : before_(dup(STDERR_FILENO)) {
    master_ = posix_openpt(O_RDWR | O_NOCTTY | O_NONBLOCK);
    grantpt(master_);
    unlockpt(master_);
    const int slave = open(ptsname(master_), O_RDWR | O_NOCTTY);
    const winsize size{24, columns, 0, 0};
    ioctl(slave, TIOCSWINSZ, &size);
    dup2(slave, STDERR_FILENO);
    close(slave);
    setenv("TERM", kind, 1);
  }
  ~Terminal() {
    dup2(before_, STDERR_FILENO);
    close(before_);
    close(master_);
  }
  Terminal(const Terminal&) = delete;
  Terminal& operator=(const Terminal&) = delete;

  /// What has been written since the last call.
  std::string text() const {
    std::string all;
    char part[4096];
    for (ssize_t count = read(master_, part, sizeof(part)); count > 0; count = read(master_, part, sizeof(part))) {
      all.append(part, static_cast<std::size_t>(count));
    }
    return all;
  }

 private:
  int before_;
  int master_;
};

}  // namespace ddptrain
