#pragma once

#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/error.h"

/// What the fuzz targets share. A target gives a parser any bytes, and states what must hold then: the parser returns a
/// valid result, or throws a UsageError. Everything else ends the process: a signal, a sanitizer's report, another
/// exception, more time or memory than the driver (libFuzzer, or replay.cpp) allows.

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

namespace ddptrain::fuzz {

/// Ends the process unless `holds`.
inline void require(bool holds, const std::string& what) {
  if (holds) return;
  std::fprintf(stderr, "fuzz target: does not hold: %s\n", what.c_str());
  std::abort();
}

/// A folder of this process, in memory where there is one.
class Folder {
 public:
  Folder() {
    const std::filesystem::path shm = "/dev/shm";
    const bool in_memory = access(shm.c_str(), W_OK) == 0;
    path_ = (in_memory ? shm : std::filesystem::temp_directory_path()) / ("ddptrain-fuzz-" + std::to_string(getpid()));
    std::filesystem::create_directories(path_);
  }
  ~Folder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;

  const std::filesystem::path& path() const { return path_; }

  std::filesystem::path write(const char* name, std::string_view content) const {
    const std::filesystem::path file = path_ / name;
    std::ofstream(file, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
    return file;
  }

 private:
  std::filesystem::path path_;
};

inline std::string_view text_of(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// Takes the text before the next byte of value 0, and that byte, from `text`: for targets that take several files.
inline std::string_view take_part(std::string_view& text) {
  const std::size_t end = std::min(text.find('\0'), text.size());
  const std::string_view part = text.substr(0, end);
  text.remove_prefix(std::min(end + 1, text.size()));
  return part;
}

/// A message is for a terminal: it names a file below `place`, and what it quotes of the file is short and printable.
inline void check_message(const std::string& message, const std::filesystem::path& place) {
  constexpr std::size_t kLongest = 1000;
  require(message.find(place.string()) != std::string::npos, "the message names the file: " + message);
  require(message.size() <= kLongest, fmt::format("the message is short: {} bytes: {:.200}", message.size(), message));
  for (const char c : message) {
    require(static_cast<unsigned char>(c) >= 0x20 && c != 0x7f, "the message can be printed: " + message);
  }
}

/// What `parse` makes of the file or folder `place`; nothing where it refuses it.
template <class Parse>
auto result_of(const std::filesystem::path& place, Parse&& parse) -> std::optional<decltype(parse())> {
  try {
    return parse();
  } catch (const UsageError& error) {
    check_message(error.what(), place);
    return std::nullopt;
  }
}

}  // namespace ddptrain::fuzz
