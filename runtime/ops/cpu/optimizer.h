#pragma once

#include <cstdint>
#include <functional>

#include "runtime/ops/optimizer.h"

namespace ddptrain::cpu {

/// Runs work(i) for every i of [0, count) on all threads; messages make progress after every `stride`.
using Parallel =
    std::function<void(std::int64_t count, std::int64_t stride, const std::function<void(std::int64_t i)>& work)>;

/// A rule as the family calls it; the file of its name in optimizers/ instantiates it.
template <OptimizerKind kKind>
struct Rule {
  /// `master`: the type of the slice's master weights and state.
  static void update(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step, DType master,
                     const Parallel& parallel);
};

}  // namespace ddptrain::cpu
