#pragma once

#include <string>
#include <string_view>

namespace ddptrain {

/// The kind of a file that begins with `begin` (512 bytes are enough), with advice, for a message that refuses it: "a
/// Git LFS pointer (git lfs pull fetches the file itself)". Empty if the beginning is that of no known kind. The first
/// tokens of a file of 16-bit tokens are practically never taken for a kind.
std::string file_kind(std::string_view begin);

/// The same for pointers alone: small text files that version control puts in place of large files.
std::string pointer_kind(std::string_view begin);

/// Whether a piece of a file is text: UTF-8, or another encoding with nearly all characters in ASCII. The piece may
/// begin and end within a character.
bool is_text(std::string_view piece);

/// "; it looks like a web page", or "" if nothing is known. Names text, too. For the end of a message.
std::string looks_like(std::string_view begin);

}  // namespace ddptrain
