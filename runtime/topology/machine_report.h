#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/topology/machine.h"

namespace ddptrain {

/// Tables for people: the matrix of links with its legend, GPUs, NICs, peer access, nearest and farthest pair.
std::string machine_text(const Machine& machine);

/// The same as JSON. Unknown values are null, or "unknown" in "links". docs/reference/topology.md lists the fields.
nlohmann::json machine_json(const Machine& machine);

}  // namespace ddptrain
