#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/diagnostics/nccl_log_parser.h"
#include "runtime/diagnostics/nccl_log_report.h"
#include "tests/fuzz/fuzz.h"

/// A log of NCCL: reading never throws, nor does writing what was read; rings are complete.

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  using namespace ddptrain;
  std::istringstream text{std::string(text_of(data, size))};
  const NcclLog log = read_nccl_log(text);
  for (const auto& [channel, ring] : log.rings) {
    require(static_cast<int>(ring.size()) == log.ranks, "rings have all ranks");
  }
  require(log.unreadable_examples.size() <= 3, "a few examples");
  for (const bool nvlink : {false, true}) {
    const auto ineffective = ineffective_settings(log, log.environment, nvlink);
    require(!nccl_text(log, ineffective).empty(), "a text");
    const auto json = nccl_json(log, ineffective);
    require(!json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace).empty(), "JSON");
  }
  return 0;
}
