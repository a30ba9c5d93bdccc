#include "runtime/diagnostics/nccl_log_capture.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <sstream>
#include <thread>

#include "runtime/core/process/host.h"

namespace ddptrain {
namespace {

constexpr std::chrono::milliseconds kPeriod(50);

/// NCCL takes the name up to the first dot.
std::string short_host_name() {
  const std::string name = system_host_name();
  return name.substr(0, name.find('.'));
}

}  // namespace

/// Reads what NCCL has written, and copies the user's lines on.
class NcclLogCapture::Copier {
 public:
  Copier(int file, const NcclDebug& user)
      : file_(file),
        view_(user),
        output_(user.file.empty() ? "" : expanded_debug_file(user.file, short_host_name(), getpid())),
        thread_([this] { run(); }) {}

  ~Copier() {
    {
      const std::lock_guard lock(mutex_);
      ends_ = true;
    }
    woken_.notify_all();
    thread_.join();
    copy();
    if (!line_.empty()) take_line();
    output_.write(std::exchange(shown_, ""));
  }

  NcclLog log() {
    const std::lock_guard lock(mutex_);
    copy();
    return reader_.log();
  }

 private:
  /// Where the user wants the log; as in NCCL, standard output if the file cannot be made.
  class Output {
   public:
    explicit Output(const std::string& path) : file_(path.empty() ? nullptr : std::fopen(path.c_str(), "w")) {}
    ~Output() {
      if (file_ != nullptr) std::fclose(file_);
    }
    Output(const Output&) = delete;
    Output& operator=(const Output&) = delete;

    /// Flushed, so that other writers do not come into a line.
    void write(const std::string& text) const {
      FILE* to = file_ != nullptr ? file_ : stdout;
      std::fwrite(text.data(), 1, text.size(), to);
      std::fflush(to);
    }

   private:
    FILE* file_;
  };

  void run() {
    std::unique_lock lock(mutex_);
    while (!woken_.wait_for(lock, kPeriod, [this] { return ends_; })) copy();
  }

  void copy() {
    std::array<char, 1 << 16> piece;
    ssize_t got = 0;
    while ((got = pread(file_, piece.data(), piece.size(), static_cast<off_t>(done_))) > 0) {
      for (const char* c = piece.data(); c != piece.data() + got; ++c) {
        if (*c == '\n') {
          take_line();
        } else {
          line_ += *c;
        }
      }
      drop(static_cast<std::size_t>(got));
    }
    if (!shown_.empty()) output_.write(std::exchange(shown_, ""));
  }

  void take_line() {
    reader_.read(line_);
    if (const auto shown = view_.shown(line_)) shown_ += *shown + '\n';
    line_.clear();
  }

  /// Gives the memory of what has been read back, in pages. A long run with NCCL_DEBUG_SUBSYS=COLL logs gigabytes.
  void drop(std::size_t bytes) {
    done_ += bytes;
    fallocate(file_, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(done_));
  }

  int file_;
  std::mutex mutex_;  // for all that follows
  std::condition_variable woken_;
  bool ends_ = false;
  std::size_t done_ = 0;  ///< Bytes of the file that have been read.
  std::string line_;      ///< The line that has no end yet.
  std::string shown_;     ///< Lines for the user that have not been written.
  NcclLogReader reader_;
  NcclLogView view_;
  Output output_;
  std::thread thread_;
};

NcclLogCapture::NcclLogCapture(const NcclDebug& user) : file_("nccl-log") {
  if (user.level != NcclDebug::Level::nothing) copier_ = std::make_unique<Copier>(file_.descriptor(), user);
  const NcclRequest request = nccl_request(user);
  environment_.set("NCCL_DEBUG", request.level);
  environment_.set("NCCL_DEBUG_SUBSYS", request.subsystems);
  environment_.set("NCCL_DEBUG_FILE", file_.path());
}

NcclLogCapture::~NcclLogCapture() = default;

std::string NcclLogCapture::text() const { return file_.text(); }

NcclLog NcclLogCapture::log() const {
  if (copier_) return copier_->log();
  std::istringstream log(text());
  return read_nccl_log(log);
}

}  // namespace ddptrain
