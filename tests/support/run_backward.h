#pragma once

#include "runtime/train/model.h"

namespace ddptrain {

/// The backward pass of all units.
inline void run_backward(Model& model, bool accumulate, const Model::Ready& ready) {
  for (std::size_t unit = model.units().size(); unit-- > 0;) model.backward(unit, accumulate, ready);
}

}  // namespace ddptrain
