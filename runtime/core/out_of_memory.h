#pragma once

#include <cstddef>
#include <string>

#include "runtime/core/error.h"

namespace ddptrain {

/// A number of bytes for people, in powers of 1000: "1.25 GB".
std::string size_text(std::size_t bytes);

/// Memory of a device or of the host was not there. The message says what was asked for; the program adds what a run
/// keeps and which flags lessen it.
class OutOfMemory : public Error {
 public:
  using Error::Error;
};

}  // namespace ddptrain
