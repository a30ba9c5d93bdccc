#include "runtime/outer/log_faults.h"

#include <spdlog/spdlog.h>

#include <thread>

namespace ddptrain {
namespace {

constexpr std::chrono::minutes kQuiet{1};        // between two lines about a full log
constexpr std::chrono::milliseconds kLook{200};  // between two looks at a server that reads its file

const char* remedy(const LogAddress& address, const RedisFault& fault) {
  const std::string what = fault.what();
  const auto has = [&](const char* word) { return what.find(word) != what.npos; };
  if (is_full(fault)) {
    return "Remove finished runs (launch/outer-log --remove), or stop launch/outer-log and start it again with more "
           "--memory.";
  }
  if (has("NOPERM")) return "The server is not of this version's launch/outer-log: start it again with that.";
  if (has("without any password")) {
    return "The server has no password: unset the environment variable DDPTRAIN_OUTER_PASSWORD.";
  }
  if (has("AUTH") || has("WRONGPASS")) {
    return "Set the environment variable DDPTRAIN_OUTER_PASSWORD to the password of the log.";
  }
  if (has(kLogAuthorityVariable))
    return "Give the file, in PEM, of the authority that signed the server's certificate.";
  if (has(kCertificateFault)) {
    return "Set the environment variable DDPTRAIN_OUTER_CA to the file of the authority that signed it, and give the "
           "host in --outer as the certificate names it.";
  }
  if (has(kNoTlsFault)) return "If the server has no TLS, the address begins with redis://.";
  if (has("Protocol error")) return "It is no Redis server, or it has TLS: then the address begins with rediss://.";
  if (!address.tls && (has("closed the connection") || has("reset by peer"))) {
    return "If the server has TLS, the address begins with rediss://.";
  }
  return "launch/outer-log starts a server.";
}

}  // namespace

bool is_full(const RedisFault& fault) { return std::string_view(fault.what()).starts_with("OOM"); }

bool is_loading(const RedisFault& fault) { return std::string_view(fault.what()).starts_with("LOADING"); }

std::string text_of(const RedisFault& fault) {
  return is_full(fault) ? fmt::format("the log is full: {}", fault.what()) : fault.what();
}

void ask_log(const LogAddress& address, const std::function<void()>& commands) {
  try {
    commands();
  } catch (const RedisFault& fault) {
    const std::string what = text_of(fault);
    const bool is_sentence = what.ends_with('.') || what.ends_with('?');
    usage_error("{}: {}{} {}", address.text(), what, is_sentence ? "" : ".", remedy(address, fault));
  }
}

void open_log(RedisConnection& connection, const LogAddress& address, const std::function<bool()>& is_interrupted) {
  bool is_told = false;
  while (!connection.is_open()) {
    ask_log(address, [&] {
      try {
        connection.open();
      } catch (const RedisRefusal& refusal) {
        if (!is_loading(refusal)) throw;
      }
    });
    if (connection.is_open()) return;
    if (!is_told) spdlog::info("The log {} is still reading its file: waiting for it", address.text());
    is_told = true;
    if (is_interrupted()) throw RedisInterrupted("interrupted");
    std::this_thread::sleep_for(kLook);
  }
}

void LogOutage::failed(const RedisConnection& connection, const RedisFault& fault) {
  const std::lock_guard lock(mutex_);
  const Clock::time_point now = Clock::now();
  if (failing_.empty()) {
    begin_ = now;
    is_told_away_ = false;
    is_told_full_ = false;
  }
  failing_.insert(&connection);
  if (is_full(fault) && full_until_ && begin_ < *full_until_ + kQuiet && now < begin_ + kQuiet) return;
  if (std::exchange(is_full(fault) ? is_told_full_ : is_told_away_, true)) return;
  if (is_full(fault)) {
    const char* const advice =
        rounds_
            ? "Groups that wait write no checkpoints, with which a log of rounds makes room. Remove finished runs "
              "(launch/outer-log --remove), or stop launch/outer-log and start it again with more --memory. A smaller "
              "--checkpoint-every of all groups needs less."
            : "If that lasts, remove finished runs (launch/outer-log --remove), or stop launch/outer-log and start it "
              "again with more --memory.";
    spdlog::warn("The log {} is full: {}. Nothing is exchanged until it has room. {}", log_, fault.what(), advice);
  } else {
    spdlog::warn("The log {} is out of reach: {}", log_, fault.what());
  }
}

void LogOutage::answered(const RedisConnection& connection) {
  const std::lock_guard lock(mutex_);
  if (failing_.erase(&connection) == 0 || !failing_.empty()) return;
  const Clock::time_point now = Clock::now();
  if (is_told_full_) full_until_ = now;
  if (!is_told_away_ && !is_told_full_) return;
  const std::chrono::duration<double> time = now - begin_;
  spdlog::info("The log {} {} again, after {:.1f} s", log_, is_told_away_ ? "answers" : "has room", time.count());
}

}  // namespace ddptrain
