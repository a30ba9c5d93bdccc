#pragma once

#include <spdlog/fmt/fmt.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/core/text.h"

namespace ddptrain {

/// Something went wrong at run time; the job cannot go on. The programs end all ranks with exit code 1.
class Error : public std::runtime_error {
 public:
  explicit Error(const std::string& message, bool agreed = false) : std::runtime_error(message), agreed_(agreed) {}
  /// Whether every rank throws this error (World::agree). No rank is then left waiting for another.
  bool agreed() const { return agreed_; }

 private:
  bool agreed_;
};

/// The user asked for something that cannot be done. The message says what, where and what to do about it.
/// After the ranks have agreed on it, the programs print it once and leave with exit code 2.
class UsageError : public Error {
 public:
  using Error::Error;
};

/// Memory of a device or of the host was not there. The message says what was asked for; the program adds what a run
/// keeps and which flags lessen it.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

/// A text of several lines among the arguments of a message, such as a table.
struct Lines {
  std::string text;
};

/// The type of an argument as a message shows it. A text is on one line, because names of files may have line feeds.
template <class T>
using Shown =
    std::conditional_t<std::is_same_v<std::remove_cvref_t<T>, Lines> || std::is_convertible_v<T, std::string_view>,
                       std::string, T>;

template <class T>
Shown<T> shown(T&& argument) {
  if constexpr (std::is_same_v<std::remove_cvref_t<T>, Lines>) {
    return argument.text;
  } else if constexpr (std::is_convertible_v<T, std::string_view>) {
    return one_line(argument);
  } else {
    return std::forward<T>(argument);
  }
}

template <class... Args>
[[noreturn]] void fail(fmt::format_string<Shown<Args>...> format, Args&&... args) {
  throw Error(fmt::format(format, shown(std::forward<Args>(args))...));
}

template <class... Args>
[[noreturn]] void usage_error(fmt::format_string<Shown<Args>...> format, Args&&... args) {
  throw UsageError(fmt::format(format, shown(std::forward<Args>(args))...));
}

}  // namespace ddptrain

/// Throws Error naming the condition, file and line, then the formatted explanation, unless `condition` holds.
#define DDP_CHECK(condition, ...)                                                                                 \
  do {                                                                                                            \
    if (!(condition)) {                                                                                           \
      ::ddptrain::fail("{}:{}: check '{}' failed: {}", __FILE__, __LINE__, #condition, fmt::format(__VA_ARGS__)); \
    }                                                                                                             \
  } while (false)
