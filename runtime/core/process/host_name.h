#pragma once

#include <string>

namespace ddptrain {

/// Of the machine or container, as the system has it, before MPI is there too; "host" where the system has none.
/// Job-wide names are World::hostname().
std::string system_host_name();

}  // namespace ddptrain
