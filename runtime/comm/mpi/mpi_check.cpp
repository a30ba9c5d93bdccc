#include "runtime/comm/mpi/mpi_check.h"

#include <algorithm>

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
  constexpr std::size_t kMostAtOnce = std::size_t{1} << 30;  // MPI counts with int
  for (std::size_t at = 0; at < bytes; at += kMostAtOnce) {
    const int count = static_cast<int>(std::min(bytes - at, kMostAtOnce));
    DDP_MPI_CHECK(MPI_Bcast(static_cast<char*>(data) + at, count, MPI_BYTE, root, comm));
  }
}

}  // namespace ddptrain
