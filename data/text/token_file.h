#pragma once

#include <filesystem>

#include "data/text/tokens.h"
#include "runtime/core/files/mapped_file.h"

namespace ddptrain {

/// The tokens of a file. A view of it.
struct TokenFile {
  TokenSegment tokens;
  std::uint8_t token_bytes = 2;  ///< 2 or 4
  std::int64_t vocabulary = 0;   ///< That the file says, or its kind has. 0: unknown.
};

/// The tokens of a .bin file:
/// - of llm.c: 256 int32 of header, then ids. Magic 20240520, version 1, count: uint16. Magic 20240801, version 7,
///   count: uint32;
/// - of llmq: "BIN.TOK\n", int32 version 2, bytes per token (4), count, vocabulary, whether there are masks (0); int32
///   ids from byte 1024 on;
/// - nothing but uint16 or uint32 (nanoGPT).
///
/// UsageError if it is another kind of file. Bare tokens have no mark of their own, so some 200 KB of them are looked
/// at. They are 32-bit ids if every second 16-bit word is 0 or tiny. Text, 8- and 64-bit ids, other byte orders, and
/// files with the mark of another format are refused. A file with a header is believed. Megatron's .bin is read if the
/// .idx beside it says 16 or 32 bits.
TokenFile token_file(const MappedFile& file, const std::filesystem::path& path);

/// UsageError if the file is not text: it holds a byte of value 0 near its beginning, or is a pointer to another file.
void check_text(const MappedFile& file, const std::filesystem::path& path);

}  // namespace ddptrain
