#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace ddptrain {

/// A file or folder that a program reads, and the flag that names it. A path with *, ? or [ is a pattern.
struct InputPath {
  std::string flag;
  std::string path;
};

/// A file that a program will write.
struct OutputFile {
  std::string flag;
  std::string path;
  /// Without white space, a file of this program has one of these at byte `begins_at`. Empty: any file may be
  /// overwritten.
  std::vector<std::string> beginnings;
  std::string contains = {};  ///< And has this near its beginning, without white space.
  std::size_t begins_at = 0;
  bool is_foreign = false;         ///< A file of this name with any content is another program's.
  bool may_replace_input = false;  ///< With --force, because the input has been read before.
};

/// UsageError if an output is an input, lies in a folder that is an input and was not written as the same kind of
/// output, is another output, or is an existing file that no program of this project wrote (unless `force`). Links and
/// other names of the same file count as the file. Empty files, devices and pipes may always be written.
///
/// The tools in Python have the same rule and messages in launch/ddptools/common/outputs.py.
void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<InputPath>& inputs, bool force);

}  // namespace ddptrain
