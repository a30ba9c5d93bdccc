#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ddptrain {

/// `text` as a message can quote it where it comes from a file: its first `most` bytes, "..." where more follow, and
/// '?' for every byte that is no visible ASCII character or space, so that no file writes to the terminal.
std::string printable(std::string_view text, std::size_t most = 90);

/// `text` of any length as people read it: lines, tabs and UTF-8 stay; control characters and bytes that are no UTF-8
/// are written as \x1b.
std::string printable_text(std::string_view text);

/// "1 rank", "2 ranks".
std::string counted(std::int64_t number, std::string_view thing);

}  // namespace ddptrain
