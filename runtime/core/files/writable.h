#pragma once

#include <string>

namespace ddptrain {

/// UsageError if the file that `flag` names cannot be written, or is "-": to be asked before the work whose result
/// goes there. What is in the file stays; if there is none, none is left.
void require_writable(const std::string& flag, const std::string& path);

/// The same for a folder, which is made if it is missing.
void require_writable_folder(const std::string& flag, const std::string& path);

}  // namespace ddptrain
