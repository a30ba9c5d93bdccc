#pragma once

#include <string>

namespace ddptrain {

struct LogAddress {
  std::string host;
  int port = 6379;
  bool tls = false;
  std::string user;      ///< Empty: Redis's default user.
  std::string password;  ///< Empty: none.
  std::string name;      ///< Of the run in the server. Its keys begin with "ddptrain:NAME:".

  std::string text() const;  ///< Without the password.
};

/// Reads redis://[USER@]HOST[:PORT]/NAME, or rediss:// for TLS. The password is taken from the environment variable
/// kLogPasswordVariable. UsageError if the URL has one, because other users of the machine could read it.
LogAddress parse_log_address(const std::string& url);
inline constexpr const char* kLogPasswordVariable = "DDPTRAIN_OUTER_PASSWORD";
/// Of the file with the certificate authority whose certificates rediss:// accepts.
inline constexpr const char* kLogAuthorityVariable = "DDPTRAIN_OUTER_CA";

}  // namespace ddptrain
