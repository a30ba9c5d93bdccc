#include <gtest/gtest.h>

#include "runtime/core/error.h"
#include "runtime/core/process/scoped_environment.h"
#include "runtime/outer/log_address.h"

namespace ddptrain {
namespace {

TEST(LogAddressTest, Parts) {
  const LogAddress plain = parse_log_address("redis://host/run");
  EXPECT_EQ(plain.host, "host");
  EXPECT_EQ(plain.port, 6379);
  EXPECT_EQ(plain.name, "run");
  EXPECT_FALSE(plain.tls);
  const LogAddress full = parse_log_address("rediss://me@10.0.0.1:7000/a.b-c_1");
  EXPECT_TRUE(full.tls);
  EXPECT_EQ(full.user, "me");
  EXPECT_EQ(full.host, "10.0.0.1");
  EXPECT_EQ(full.port, 7000);
  EXPECT_EQ(full.text(), "rediss://me@10.0.0.1:7000/a.b-c_1");
  EXPECT_EQ(parse_log_address("redis://[::1]:7000/x").host, "::1");
  EXPECT_EQ(parse_log_address("redis://[::1]/x").port, 6379);
  EXPECT_EQ(parse_log_address("redis://[::1]/x").text(), "redis://[::1]:6379/x");
}

TEST(LogAddressTest, ThePasswordComesFromTheEnvironmentOnly) {
  EXPECT_THROW(parse_log_address("redis://:secret@host/run"), UsageError);
  EXPECT_THROW(parse_log_address("redis://me:secret@host/run"), UsageError);
  ScopedEnvironment environment;
  environment.set(kLogPasswordVariable, "secret");
  const LogAddress address = parse_log_address("redis://host/run");
  EXPECT_EQ(address.password, "secret");
  EXPECT_EQ(address.text().find("secret"), std::string::npos);
}

TEST(LogAddressTest, Mistakes) {
  for (const char* url :
       {"", "host", "http://host/run", "redis://host", "redis://host/", "redis:///run", "redis://host:0/run",
        "redis://host:x/run", "redis://host:70000/run", "redis://host/a/b", "redis://host/a b"}) {
    EXPECT_THROW(parse_log_address(url), UsageError) << url;
  }
}

}  // namespace
}  // namespace ddptrain
