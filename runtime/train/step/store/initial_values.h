#pragma once

#include <cstdint>
#include <vector>

#include "runtime/train/model.h"
#include "runtime/train/step/store/bucket_plan.h"

namespace ddptrain {

/// Sets `values` to the initial values of a bucket, with zeros as padding. Random values follow from `seed` and the
/// names of the parameters. If ranks split a parameter, each makes the whole and keeps its part. Uses all cores.
void make_initial_values(const std::vector<ParameterSpec>& specs, const BucketPlan& plan, const Bucket& bucket,
                         std::uint64_t seed, std::vector<float>& values);

}  // namespace ddptrain
