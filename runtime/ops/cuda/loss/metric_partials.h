#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "runtime/core/step.h"

namespace ddptrain::cuda {

/// Loss and hits of the rows that one block took.
struct MetricPartial {
  double loss;
  std::uint32_t correct;
};

/// Adds `count` partials, in a fixed order, and `rows` samples to *sums.
void add_metric_partials(const MetricPartial* partials, std::uint32_t count, std::int64_t rows, MetricSums* sums,
                         cudaStream_t stream);

}  // namespace ddptrain::cuda
