#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/tensor.h"
#include "runtime/outer/codec.h"
#include "runtime/outer/fold.h"

/// A file of the entries that a group has folded, with the outer weights from before the first one. Folding it again
/// gives the same bits.

namespace ddptrain {

struct OuterParameter {
  std::string name;
  Shape shape;
};

/// Hash of names, shapes and values: the parameter hash of a model with these weights.
std::string hash_of(const std::vector<OuterParameter>& parameters, std::span<const float> weights);

struct OuterRecordHead {
  OuterRule rule;
  OuterLayout layout;
  std::vector<OuterParameter> parameters;
  std::string fold;  ///< OuterFold::record() before the first entry.
};

/// The file begins with it, and with the number of its format.
inline constexpr const char* kOuterRecordStart = "ddptrain-outer-record-";

class OuterRecorder {
 public:
  /// Replaces the file. UsageError if it cannot be written.
  OuterRecorder(const std::filesystem::path& path, const OuterRecordHead& head, std::span<const float> weights,
                std::span<const float> velocity);
  /// Error if the disk does not take it.
  void add(std::string_view entry);

 private:
  std::string path_;
  std::ofstream file_;
};

struct OuterReplay {
  std::string hash;                             ///< Of the outer weights after the last entry.
  std::uint64_t version = 0;                    ///< The lowest version of a fragment.
  std::map<std::string, std::int64_t> applied;  ///< Entries by group. In rounds, those of complete rounds and others.
  std::map<std::string, std::int64_t> skipped;  ///< Entries by reason.
  bool is_cut_off = false;                      ///< The last entry, which is left out: the run was killed meanwhile.
};

/// Folds the entries of a file again. An entry that is cut off at the end is left out. UsageError, naming the file, if
/// it is no such file, or if a byte of it is not as it was written.
OuterReplay replay_record(const std::filesystem::path& path);

}  // namespace ddptrain
