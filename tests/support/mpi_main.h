#pragma once

#include "runtime/comm/world.h"

namespace ddptrain {

/// The ranks that run these tests; every rank runs every test.
World& test_world();

}  // namespace ddptrain
