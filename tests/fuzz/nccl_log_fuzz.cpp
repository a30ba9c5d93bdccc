#include <sstream>

#include "runtime/diagnostics/nccl_log.h"
#include "tests/fuzz/fuzz.h"

/// A log of NCCL: reading never throws.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  using namespace ddptrain;
  std::istringstream text{std::string(text_of(data, size))};
  const NcclUsage usage = usage_of(read_nccl_log(text));
  require(!usage.version.empty() && !usage.transport.empty(), "what is not known is unknown");
  require(usage.channels >= 0, "a number of channels");
  return 0;
}
