#pragma once

#include <string>

namespace ddptrain {

/// UsageError where the file that `flag` names cannot be written, or is "-": to be asked before the work whose result
/// goes there. What is in the file stays; where there is none, none is left.
void require_writable(const std::string& flag, const std::string& path);

/// The same of a folder, which is made where it is missing.
void require_writable_folder(const std::string& flag, const std::string& path);

}  // namespace ddptrain
