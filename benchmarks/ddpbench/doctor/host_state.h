#pragma once

#include <cstdint>
#include <filesystem>

#include "launch/app/job/check_hosts.h"

namespace ddptrain::bench {

/// Number, size and hash of the files in a folder, or of a file. Reads them all.
HostFact data_fact(const std::filesystem::path& path);

/// TCP segments that this host has sent more than once, since its start.
std::uint64_t resent_segments();

}  // namespace ddptrain::bench
