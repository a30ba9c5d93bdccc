#pragma once

#include <string>

namespace ddptrain {

/// What NCCL's RAS service (2.24 and newer) in the processes of this host says of their communicators, as JSON (2.28.7
/// and newer) or text. Waits `seconds` at most. Empty where there is no such service.
std::string nccl_ras_status(double seconds);

}  // namespace ddptrain
