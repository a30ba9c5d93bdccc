#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

namespace ddptrain {

/// 64-bit hash of a sequence of values, to compare what ranks hold. Not cryptographic. The same on every machine of one
/// byte order; where one add() ends and the next begins counts.
class Hash64 {
 public:
  void add(const void* data, std::size_t bytes);
  void add(const std::string& text) { add(text.data(), text.size()); }
  void add(std::int64_t value) { add(&value, sizeof(value)); }

  std::uint64_t value() const;
  std::string hex() const;  ///< 16 digits.

 private:
  void mix(std::uint64_t word);

  std::uint64_t state_ = 0xCBF29CE484222325u;
};

}  // namespace ddptrain
