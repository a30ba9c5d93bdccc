#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
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
  /// The same for data that come in pieces: begin() with their number of bytes, and go_on() with each piece.
  void begin(std::size_t bytes);
  void go_on(const void* piece, std::size_t bytes);
  void add(const std::string& text) { add(text.data(), text.size()); }
  void add(std::int64_t value) { add(&value, sizeof(value)); }

  std::string state() const;  ///< All of it, for go_on_from() in a process of the same program.
  void go_on_from(const std::string& state);
  std::array<std::uint64_t, 2> value() const;  ///< High half first.
  std::string hex() const;                     ///< 32 digits.

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// XXH3-128 of these bytes alone, 32 digits: what `xxhsum -H2` prints of a file that holds them.
std::string xxh3_128(const void* data, std::size_t bytes);
/// The same of a file, which is read and not mapped: a bad sector is an error and no signal. Empty if it cannot be
/// read.
std::string xxh3_128_of_file(const std::filesystem::path& path);
std::array<std::uint64_t, 2> xxh3_128_value(const void* data, std::size_t bytes);  ///< The same; high half first.

/// Hash of data that several readers share: each takes every `readers`-th piece, and combined() of what they found does
/// not depend on their number.
class SharedHash {
 public:
  using Value = std::array<std::uint64_t, 2>;
  static constexpr std::size_t kPieceBytes = std::size_t{1} << 17;

  explicit SharedHash(int reader = 0, int readers = 1) : reader_(reader), readers_(readers) {}

  /// The next part of the data; all readers give the same ones. `see` is shown the pieces of this reader.
  void add(const void* data, std::size_t bytes,
           const std::function<void(const void* piece, std::size_t bytes)>& see = {});
  Value value() const { return value_; }
  static Value combined(const Value& a, const Value& b) { return {a[0] ^ b[0], a[1] ^ b[1]}; }

 private:
  std::int64_t reader_;
  std::int64_t readers_;
  std::int64_t next_ = 0;
  Value value_{};
};

}  // namespace ddptrain
