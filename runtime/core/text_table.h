#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// Lines of left-aligned columns, two spaces between them, each line ending with a line feed and without spaces before
/// it. `indent`: spaces before every line. Rows may have different lengths. Width is counted in bytes.
std::string text_table(const std::vector<std::vector<std::string>>& rows, std::size_t indent = 0);

}  // namespace ddptrain
