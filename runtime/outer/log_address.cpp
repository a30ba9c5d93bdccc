#include "runtime/outer/log_address.h"

#include <cstdlib>

#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/outer/codec.h"

namespace ddptrain {
namespace {

constexpr const char* kForm = "redis://[USER@]HOST[:PORT]/NAME, or rediss:// for TLS";

int port_of(const std::string& text) {
  const bool digits = !text.empty() && text.size() <= 5 && text.find_first_not_of("0123456789") == text.npos;
  const int port = digits ? std::stoi(text) : 0;
  if (port < 1 || port > 65535) usage_error("port '{}': give a number from 1 to 65535", printable(text, 20));
  return port;
}

}  // namespace

std::string LogAddress::text() const {
  const bool is_ipv6 = host.find(':') != host.npos;
  return fmt::format("{}://{}{}{}{}{}:{}/{}", tls ? "rediss" : "redis", user, user.empty() ? "" : "@",
                     is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", port, name);
}

LogAddress parse_log_address(const std::string& url) {
  LogAddress address;
  std::string rest = url;
  for (const auto& [scheme, tls] : {std::pair{"redis://", false}, std::pair{"rediss://", true}}) {
    if (!url.starts_with(scheme)) continue;
    address.tls = tls;
    rest = url.substr(std::string(scheme).size());
  }
  if (rest.size() == url.size()) usage_error("'{}' is no address of a log: give {}", printable(url), kForm);
  if (const std::size_t at = rest.rfind('@'); at != rest.npos) {
    address.user = rest.substr(0, at);
    rest = rest.substr(at + 1);
    if (address.user.find(':') != address.user.npos) {
      usage_error(
          "a password in the address can be read by every user of the machine, and is written to metrics and "
          "checkpoints: leave it out, and set the environment variable {}",
          kLogPasswordVariable);
    }
  }
  const std::size_t slash = rest.find('/');
  if (slash == rest.npos) usage_error("'{}' names no run: give {}", printable(url), kForm);
  address.name = rest.substr(slash + 1);
  rest = rest.substr(0, slash);
  if (!is_group_name(address.name)) {
    usage_error("'{}' cannot name a run: give up to {} letters, digits, dots, dashes and underscores",
                printable(address.name), kLongestGroupName);
  }
  const std::size_t bracket = rest.rfind(']');  // [::1]:6379
  const std::size_t colon = rest.find(':', bracket == rest.npos ? 0 : bracket);
  if (colon != rest.npos) address.port = port_of(rest.substr(colon + 1));
  address.host = rest.substr(0, colon);
  if (bracket != rest.npos && rest.front() == '[') address.host = rest.substr(1, bracket - 1);
  if (address.host.empty()) usage_error("'{}' has no host: give {}", printable(url), kForm);
  if (const char* const password = std::getenv(kLogPasswordVariable)) address.password = password;
  return address;
}

}  // namespace ddptrain
