#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "runtime/topology/machine.h"

namespace ddptrain {

/// Tables for people: the matrix of links with its legend, GPUs, NICs, access between GPUs, nearest and farthest pair.
std::string machine_text(const Machine& machine);

/// The same for programs; what is unknown is null (in "links": "unknown"). docs/topology.md lists the keys.
nlohmann::json machine_json(const Machine& machine);

}  // namespace ddptrain
