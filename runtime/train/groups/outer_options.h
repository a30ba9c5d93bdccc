#pragma once

#include <cstdint>
#include <string>

#include "runtime/outer/codec.h"
#include "runtime/outer/fold.h"

namespace ddptrain {

/// Training in groups that share a log: see runtime/outer/.
struct OuterOptions {
  std::string address;  ///< See parse_log_address(). Empty: no groups.
  std::string group;
  OuterRule rule;
  OuterCodec codec = OuterCodec::int8;
  std::int64_t steps = 50;     ///< Between two differences of a fragment.
  std::int64_t delay = 0;      ///< Steps of training between sending a difference and taking the new outer weights.
  std::int64_t fragments = 1;  ///< Sent at different steps.
  std::int64_t snapshot_every = 64;  ///< Versions between two snapshots in the log; 0: none. See RunRegistry.
  std::string record;                ///< File for OuterRecorder. Empty: none.
};

}  // namespace ddptrain
