#pragma once

#include <filesystem>

#include "data/text/tokens.h"
#include "runtime/core/files/mapped_file.h"

namespace ddptrain {

/// The tokens of a .bin file: llm.c's (256 int32 of header: magic 20240520, version 1, count; then uint16) or bare
/// uint16 (nanoGPT). The result refers to `file`.
///
/// UsageError if it is another kind of file. Bare tokens have no mark of their own, so some 200 KB of them are looked
/// at: text, 8-, 32- and 64-bit ids, other byte orders, and files with the mark of another format are refused. A file
/// with llm.c's header is believed. Megatron's .bin is read if the .idx beside it says 16 bits.
TokenSegment token_segment(const MappedFile& file, const std::filesystem::path& path);

/// UsageError if the file is not text: it holds a byte of value 0 near its beginning, or is a pointer to another file.
void check_text(const MappedFile& file, const std::filesystem::path& path);

}  // namespace ddptrain
