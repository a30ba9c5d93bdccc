#pragma once

// Only MPI's C interface is used and linked.
#define OMPI_SKIP_MPICXX 1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <cstddef>

namespace ddptrain {

class World;

/// Access to a world's MPI communicator.
struct MpiAccess {
  static MPI_Comm comm(const World& world);
};

/// Throws Error unless `code` is MPI_SUCCESS. The message has the call, this rank, its host and MPI's text.
/// Communicators must have MPI_ERRORS_RETURN (World sets it; duplicates inherit it).
void check_mpi(int code, const char* call, const char* file, int line);

/// MPI_Bcast for any number of bytes.
void mpi_broadcast_bytes(void* data, std::size_t bytes, int root, MPI_Comm comm);

}  // namespace ddptrain

#define DDP_MPI_CHECK(call) ::ddptrain::check_mpi((call), #call, __FILE__, __LINE__)
