#pragma once

#include <cstdint>
#include <string>

namespace ddptrain {

/// Random bits of the machine, other ones in each call: for names and keys that no two processes may share. Nothing
/// that a training computes depends on them.
std::uint64_t random_key();
/// The same as 16 hexadecimal digits.
std::string random_id();

}  // namespace ddptrain
