#pragma once

#include <string>

namespace ddptrain {

/// UsageError if the file that `flag` names cannot be written, or is "-": to be asked before the work whose result
/// goes there. What is in the file stays; if there is none, none is left.
void require_writable(const std::string& flag, const std::string& path);

/// The same for a folder, which is made if it is missing.
void require_writable_folder(const std::string& flag, const std::string& path);

/// Error if standard output has not taken all that was written to it: to be asked after the work.
void require_output_written();

}  // namespace ddptrain
