#include "runtime/outer/log_faults.h"

namespace ddptrain {
namespace {

const char* remedy(const RedisFault& fault) {
  const std::string what = fault.what();
  const auto has = [&](const char* word) { return what.find(word) != what.npos; };
  if (is_full(fault)) return "Stop launch/outer-log and start it again with more --memory.";
  if (has("NOPERM")) return "The server is not of this version's launch/outer-log: start it again with that.";
  if (has("AUTH") || has("WRONGPASS")) {
    return "Set the environment variable DDPTRAIN_OUTER_PASSWORD to the password of the log.";
  }
  return "launch/outer-log starts a server.";
}

}  // namespace

bool is_full(const RedisFault& fault) { return std::string_view(fault.what()).starts_with("OOM"); }

std::string text_of(const RedisFault& fault) {
  return is_full(fault) ? fmt::format("the log is full: {}", fault.what()) : fault.what();
}

void ask_log(const LogAddress& address, const std::function<void()>& commands) {
  try {
    commands();
  } catch (const RedisFault& fault) {
    usage_error("{}: {}. {}", address.text(), text_of(fault), remedy(fault));
  }
}

}  // namespace ddptrain
