#pragma once

#include <string>

namespace ddptrain {

/// Name of the machine or container, from the system, so it is known before MPI starts; "host" if there is none.
/// Job-wide names are World::hostname().
std::string system_host_name();

}  // namespace ddptrain
