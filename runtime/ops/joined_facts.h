#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/core/step.h"

namespace ddptrain {

/// Facts about a row of logits from all parts of a vocabulary: see LossOps::kFacts.
template <class T>
struct JoinedFacts {
  T largest = -std::numeric_limits<T>::infinity();
  T total = 0;   ///< Sum of exp(logit - largest).
  T target = 0;  ///< The target's logit.
  bool hit = false;

  /// `facts`: facts about the row from the first part. The facts of the next part are `stride` further on.
  DDP_HOST_DEVICE JoinedFacts(const T* facts, std::int64_t parts, std::int64_t stride) {
    for (std::int64_t part = 0; part < parts; ++part) {
      const T* of_part = facts + part * stride;
      if (of_part[0] > largest) {
        largest = of_part[0];
        hit = of_part[3] > 0;
      }
      target += of_part[2];
    }
    for (std::int64_t part = 0; part < parts; ++part) {
      total += facts[part * stride + 1] * std::exp(facts[part * stride] - largest);
    }
  }
  DDP_HOST_DEVICE double loss() const { return static_cast<double>(std::log(total)) + (largest - target); }
};

}  // namespace ddptrain
