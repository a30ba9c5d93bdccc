#include "runtime/comm/mpi/mpi_check.h"

#include <algorithm>
#include <string>

#include "runtime/core/error.h"

namespace ddptrain {

void check_mpi(int code, const char* call, const char* file, int line) {
  if (code == MPI_SUCCESS) return;
  int rank = -1;
  int length = 0;
  char host[MPI_MAX_PROCESSOR_NAME] = "unknown host";
  char text[MPI_MAX_ERROR_STRING] = "";
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Get_processor_name(host, &length);
  MPI_Error_string(code, text, &length);
  fail("{}:{}: {} failed on rank {} ({}): {}", file, line, call, rank, host, text);
}

void mpi_broadcast_bytes(void* data, std::size_t bytes, int root, MPI_Comm comm) {
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;
  auto* next = static_cast<char*>(data);
  while (bytes > 0) {
    const std::size_t part = std::min(bytes, kMostAtOnce);
    DDP_MPI_CHECK(MPI_Bcast(next, static_cast<int>(part), MPI_BYTE, root, comm));
    next += part;
    bytes -= part;
  }
}

}  // namespace ddptrain
