#include "runtime/diagnostics/nccl_ras.h"

#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <utility>

#include "runtime/core/files/descriptor.h"

namespace ddptrain {
namespace {

using Clock = std::chrono::steady_clock;

/// A conversation over TCP that ends at a point in time.
class Conversation {
 public:
  Conversation(const std::string& host, const std::string& port, Clock::time_point end) : end_(end) {
    addrinfo hints{};
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(host.c_str(), port.c_str(), &hints, &found) != 0) return;
    const std::unique_ptr<addrinfo, void (*)(addrinfo*)> addresses(found, freeaddrinfo);
    for (const addrinfo* each = found; each != nullptr && !is_open(); each = each->ai_next) {
      Descriptor made(socket(each->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
      if (connect(made.get(), each->ai_addr, each->ai_addrlen) == 0) socket_ = std::move(made);
    }
  }

  bool is_open() const { return static_cast<bool>(socket_); }
  bool say(const std::string& line) const {
    const std::string text = line + "\n";
    return send(socket_.get(), text.data(), text.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(text.size());
  }
  std::string line() {
    while (text_.find('\n') == std::string::npos) {
      if (!more()) return {};
    }
    const std::string line = text_.substr(0, text_.find('\n'));
    text_.erase(0, line.size() + 1);
    return line;
  }
  std::string rest() {
    while (more()) {
    }
    return std::move(text_);
  }

 private:
  bool more() {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end_ - Clock::now()).count();
    pollfd readable{socket_.get(), POLLIN, 0};
    if (poll(&readable, 1, static_cast<int>(std::max<std::int64_t>(left, 0))) <= 0) return false;
    char bytes[4096];
    const auto count = recv(socket_.get(), bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    text_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }

  Clock::time_point end_;
  Descriptor socket_;
  std::string text_;
};

}  // namespace

std::string nccl_ras_status(double seconds) {
  const char* address = std::getenv("NCCL_RAS_ADDR");
  const std::string text = address == nullptr ? "localhost:28028" : address;
  const auto colon = text.rfind(':');
  if (colon == std::string::npos) return {};
  Conversation ras(text.substr(0, colon), text.substr(colon + 1),
                   Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds)));
  if (!ras.is_open() || !ras.say("CLIENT PROTOCOL 2") || ras.line().empty()) return {};
  ras.say("TIMEOUT 1");
  if (ras.line().empty()) return {};
  ras.say("SET FORMAT json");  // older ones answer that they do not know it, and go on
  ras.line();
  ras.say("VERBOSE STATUS");
  return ras.rest();
}

}  // namespace ddptrain
