#pragma once

#include <string>
#include <vector>

namespace ddptrain {

/// Paths of the files in /dev/shm through which Open MPI's ranks of a host exchange messages (vader_segment.*), and
/// which this process has mapped. Empty with other MPI libraries.
std::vector<std::string> mapped_mpi_segments();

/// Removes the name of this rank's own one of `segments`; returns it, or nothing where it is not known for sure.
std::string unlink_own_segment(const std::vector<std::string>& segments, int local_rank);

/// Makes an empty file of that name, because MPI's end complains where there is none to remove.
void restore_segment(const std::string& path);

}  // namespace ddptrain
