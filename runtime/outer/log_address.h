#pragma once

#include <string>

namespace ddptrain {

struct LogAddress {
  std::string host;
  int port = 6379;
  bool tls = false;
  std::string user;      ///< Empty: Redis's default user.
  std::string password;  ///< Empty: none.
  std::string name;      ///< Of the run in the server.

  std::string text() const;                                      ///< Without the password.
  std::string keys() const { return "ddptrain:" + name + ":"; }  ///< With what all keys of the run begin.
};

/// Reads redis://[USER@]HOST[:PORT]/NAME, or rediss:// for TLS. The password is taken from the environment variable
/// kLogPasswordVariable. UsageError if the URL has one, because other users of the machine could read it.
LogAddress parse_log_address(const std::string& url);
inline constexpr const char* kLogPasswordVariable = "DDPTRAIN_OUTER_PASSWORD";
/// Of the file with the certificate authority whose certificates rediss:// accepts.
inline constexpr const char* kLogAuthorityVariable = "DDPTRAIN_OUTER_CA";

/// Keys that several connections of a group use, after LogAddress::keys().
inline constexpr const char* kLogKey = "log";          ///< The stream of entries.
inline constexpr const char* kTrimmedKey = "trimmed";  ///< Position up to which entries may have been removed.

}  // namespace ddptrain
