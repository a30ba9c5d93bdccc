#pragma once

#include <cmath>
#include <cstdint>
#include <limits>

#include "runtime/core/step.h"

namespace ddptrain {

/// The softmax of a row of logits, combined from the partial statistics of all slices of the vocabulary: see
/// LossOps::kSoftmaxStatistics.
template <class T>
struct CombinedSoftmax {
  T largest = -std::numeric_limits<T>::infinity();
  T total = 0;   ///< Sum of exp(logit - largest).
  T target = 0;  ///< The target's logit.
  bool hit = false;

  /// `statistics`: those of the first slice. The statistics of the next slice are `stride` further on.
  DDP_HOST_DEVICE CombinedSoftmax(const T* statistics, std::int64_t slices, std::int64_t stride) {
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      const T* of_slice = statistics + slice * stride;
      if (of_slice[0] > largest) {
        largest = of_slice[0];
        hit = of_slice[3] > 0;
      }
      target += of_slice[2];
    }
    for (std::int64_t slice = 0; slice < slices; ++slice) {
      total += statistics[slice * stride + 1] * std::exp(statistics[slice * stride] - largest);
    }
  }
  DDP_HOST_DEVICE double loss() const { return static_cast<double>(std::log(total)) + (largest - target); }
};

}  // namespace ddptrain
