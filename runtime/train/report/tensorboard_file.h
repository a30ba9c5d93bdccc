#pragma once

#include <cstdint>
#include <fstream>
#include <string>

namespace ddptrain {

/// An event file that TensorBoard reads, as its format is documented: TFRecords (length, masked CRC-32C of the length,
/// bytes, masked CRC-32C of the bytes) of tensorflow.Event messages in protobuf's wire format. Every event is in the
/// file when its function returns; each throws Error where that fails (disk full).
class TensorBoardFile {
 public:
  /// Makes a file with a name of its own in `folder`, and the folder where it is missing. What other files of the
  /// folder say of `step` and later ones is hidden by TensorBoard. UsageError, which names --tensorboard, where it
  /// cannot be written.
  TensorBoardFile(const std::string& folder, std::int64_t step);

  void scalar(const std::string& tag, std::int64_t step, double value);
  /// Markdown; in UTF-8, where that is not told otherwise.
  void text(const std::string& tag, std::int64_t step, const std::string& markdown);

 private:
  void write(std::int64_t step, const std::string& fields);

  std::string path_;
  std::ofstream file_;
};

}  // namespace ddptrain
