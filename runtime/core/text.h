#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

/// Text for people.

namespace ddptrain {

/// `text` as a message can quote it if it comes from a file: its first `most` bytes, "..." if more follow, and
/// '?' for every byte that is no visible ASCII character or space, so that no file writes to the terminal.
std::string printable(std::string_view text, std::size_t most = 90);

/// A message of a program without characters that control a terminal, which names of files may have: '?' in place of
/// control characters and of what is not UTF-8. Line feeds and tabs stay.
std::string without_controls(std::string_view text);

/// The same on one line, for a name or a value within a message: '?' in place of line feeds and tabs, too.
std::string one_line(std::string_view text);

/// "1 rank", "2 ranks".
std::string counted(std::int64_t number, std::string_view thing);

/// A number of bytes, in powers of 1000: "1.25 GB".
std::string size_text(std::size_t bytes);

/// "2,970", "41.3", "0.0533": rounded to `digits`, all zeros kept.
std::string significant(double value, int digits = 3);

/// The name that `typed` probably means: it begins with `typed`, or differs in at most a third of the letters. Empty:
/// none.
std::string nearest(const std::string& typed, const std::vector<std::string>& names);

/// Lines of left-aligned columns, two spaces between them, each line ending with a line feed and without spaces before
/// it. Rows may have different lengths. Width is counted in bytes.
std::string text_table(const std::vector<std::vector<std::string>>& rows);

}  // namespace ddptrain
