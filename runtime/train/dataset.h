#pragma once

#include <cstdint>
#include <string>

#include "runtime/core/hash.h"

namespace ddptrain {

/// What this rank's host holds, to be compared with other hosts.
struct DataContent {
  std::string size;       ///< In words, of all the data.
  SharedHash hash;        ///< Of this rank's share; the ranks of a host have it all.
  std::string text = {};  ///< Sizes of both parts and where they come from, for the log; empty: not known.
};

/// What the runtime knows of a data set: how many samples there are to train and to test on. What a sample is, only the
/// model knows, which was bound to the data when it was made and reads the rows that a Slice names.
class Dataset {
 public:
  virtual ~Dataset() = default;

  virtual std::int64_t train_count() const = 0;
  virtual std::int64_t test_count() const = 0;
  virtual DataContent content() const = 0;
};

}  // namespace ddptrain
