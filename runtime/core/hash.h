#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace ddptrain {

/// XXH3-128 of a sequence of values, to compare what ranks and hosts hold. Not cryptographic. The same on every machine
/// of one byte order. Where one add() ends and the next begins counts.
class Hash128 {
 public:
  Hash128();
  ~Hash128();

  void add(const void* data, std::size_t bytes);
  void add(const std::string& text) { add(text.data(), text.size()); }
  void add(std::int64_t value) { add(&value, sizeof(value)); }

  std::string hex() const;  ///< 32 digits.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ddptrain
