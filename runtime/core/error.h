#pragma once

#include <spdlog/fmt/fmt.h>

#include <stdexcept>
#include <string>
#include <utility>

namespace ddptrain {

/// Something went wrong at run time; the job cannot go on. `main` ends all ranks with exit code 1.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The user asked for something that cannot be done. The message says what, where and what to do about it.
/// `main` prints it once and all ranks leave with exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Args...> format, Args&&... args) {
  throw Error(fmt::format(format, std::forward<Args>(args)...));
}

template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Args...> format, Args&&... args) {
  throw UsageError(fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace ddptrain

/// Throws Error naming the condition, file and line, then the formatted explanation, unless `condition` holds.
#define DDP_CHECK(condition, ...)                                                                                 \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      ::ddptrain::fail("{}:{}: check '{}' failed: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                                             \
  } while (false)
