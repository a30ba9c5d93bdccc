#pragma once

#include <string>
#include <string_view>

namespace ddptrain {

/// `text` as a message can quote it where it comes from a file: its first `most` bytes, "..." where more follow, and
/// '?' for every byte that is no visible ASCII character or space, so that no file writes to the terminal.
std::string printable(std::string_view text, std::size_t most = 90);

}  // namespace ddptrain
