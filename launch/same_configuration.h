#pragma once

#include <string>

#include "runtime/comm/world.h"

namespace ddptrain {

/// Compares a hash of `configuration`, lines of "name = value", over all ranks. Where it differs, all ranks throw the
/// same UsageError, with the first name that differs, its values and the ranks that have them. Collective.
void require_same_configuration(const World& world, const std::string& configuration);

}  // namespace ddptrain
