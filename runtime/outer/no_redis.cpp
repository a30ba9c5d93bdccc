#include "runtime/core/error.h"
#include "runtime/outer/log_client.h"

namespace ddptrain {

struct LogClient::Impl {};

void require_log_client(const LogAddress& /*address*/) {
  usage_error(
      "this program was built without hiredis: install libhiredis-dev (Debian, Ubuntu; launch/setup does), configure "
      "with cmake again, and build");
}

// No object is ever made.
LogClient::LogClient(LogAddress address, std::size_t /*most_bytes*/) { require_log_client(address); }
LogClient::~LogClient() = default;
std::string LogClient::settings(const std::string& mine) { return mine; }
bool LogClient::is_finished() { return false; }
void LogClient::set_finished() {}
std::string LogClient::newest() { return {}; }
void LogClient::start(const std::string& /*after*/) {}
void LogClient::append(std::string /*bytes*/) {}
std::vector<LogClient::Entry> LogClient::take() { return {}; }
bool LogClient::wait(std::chrono::milliseconds /*longest*/) { return false; }
bool LogClient::flush(std::chrono::milliseconds /*longest*/) { return false; }
std::string LogClient::fault() const { return {}; }
std::uint64_t LogClient::bytes_sent() const { return 0; }
std::uint64_t LogClient::bytes_received() const { return 0; }

}  // namespace ddptrain
