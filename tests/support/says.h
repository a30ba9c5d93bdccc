#pragma once

#include <gtest/gtest.h>

#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "runtime/core/error.h"

namespace ddptrain {

inline bool says(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

inline std::vector<std::string> words_of(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<std::string>(in), {}};
}

inline int occurrences(const std::string& text, const std::string& part) {
  int found = 0;
  for (auto at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++found;
  return found;
}

/// The message of the error that `call` throws; fails the test if it throws none of that type.
template <class Thrown = UsageError, class Call>
std::string error_message(Call&& call) {
  try {
    call();
  } catch (const Thrown& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return {};
}

}  // namespace ddptrain

#define EXPECT_CONTAINS(text, part) \
  EXPECT_TRUE(::ddptrain::says(text, part)) << "no \"" << (part) << "\" in: " << (text)
