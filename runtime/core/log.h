#pragma once

#include <cstddef>
#include <string>

namespace ddptrain {

/// Sets up spdlog's default logger: standard error, lines with time, level and rank. `level`: trace, debug, info, warn,
/// error or off. Ranks other than 0 log warnings and errors only, unless level is debug or trace. If rank 0 writes to a
/// terminal, the logger has a status line.
void init_logging(const std::string& level, int rank);

/// The last line of a terminal, which rewrites itself. Log messages appear above it. Threads may share it.
class StatusLine {
 public:
  virtual ~StatusLine() = default;
  virtual void set(const std::string& text) = 0;    ///< Text beyond columns() is cut. Empty: there is no line.
  virtual std::size_t columns() const = 0;          ///< Longest text.
  virtual void print(const std::string& text) = 0;  ///< Writes lines to standard output, above the status line.
};

/// The status line of the default logger, which it lives as long as; null if it does not write to a terminal.
StatusLine* status_line();

/// Whether standard output reaches a terminal: directly, or by Open MPI's launcher.
bool output_is_on_terminal();

/// Writes lines to standard output at once, above the status line if there is one.
void print(const std::string& text);

}  // namespace ddptrain
