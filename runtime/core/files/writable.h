#pragma once

#include <string>

#include "runtime/core/files/descriptor.h"

namespace ddptrain {

/// UsageError if the file that `flag` names cannot be written, is "-", or is a pipe that no program reads: to be asked
/// before the work whose result goes there. What is in the file stays; if there is none, none is left. Of a pipe, the
/// result keeps its reader waiting until the file is opened: without a writer, the reader would end.
[[nodiscard]] Descriptor require_writable(const std::string& flag, const std::string& path);

/// UsageError if `flag` names a file that is none of bytes on a disk, but for /dev/null: a pipe or a terminal may give
/// nothing for ever, and gives its text only once.
void require_regular(const std::string& flag, const std::string& path);

/// As require_writable() for a folder, which is made if it is missing.
void require_writable_folder(const std::string& flag, const std::string& path);

/// Error if standard output has not taken all that was written to it: to be asked after the work.
void require_output_written();

}  // namespace ddptrain
