#pragma once

#include <functional>
#include <utility>

#include "runtime/device/device.h"

namespace ddptrain {

/// The graph of a device without graphs: a launch calls again what was captured.
struct Replay final : Graph {
  explicit Replay(std::function<void()> captured) : work(std::move(captured)) {}
  void launch() override { work(); }
  std::function<void()> work;
};

}  // namespace ddptrain
