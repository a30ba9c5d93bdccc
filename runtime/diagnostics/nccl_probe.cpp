#include "runtime/diagnostics/nccl_probe.h"

#include <cstdlib>
#include <optional>

#include "runtime/comm/communicator.h"
#include "runtime/diagnostics/nccl_log_capture.h"

namespace ddptrain {

namespace {

/// The file in memory that NCCL writes because `variable` names it. None if the user has set the variable.
std::optional<MemoryFile> dump_of(const char* variable, ScopedEnvironment& environment) {
  if (std::getenv(variable) != nullptr) return std::nullopt;
  std::optional<MemoryFile> file(std::in_place, variable);
  environment.set(variable, file->path());
  return file;
}

void run_collectives(const World& world, Device& device) {
  const auto communicator = make_nccl_communicator(world, device, {.symmetric = false});
  for (const std::int64_t bytes : {4096LL, 1048576LL, 67108864LL}) {
    const Shape shape = {bytes / 4};
    const Buffer buffer = communicator->allocate(static_cast<std::size_t>(bytes));
    communicator->all_reduce_sum({buffer.data(), DType::f32, shape}, device.communication_stream());
    device.synchronize();
  }
  communicator->check_health();
}

}  // namespace

NcclProbe probe_nccl(const World& world, Device& device) {
  ScopedEnvironment environment;
  environment.set("NCCL_DEBUG", std::nullopt);
  environment.set("NCCL_DEBUG_FILE", std::nullopt);
  NcclProbe probe;
  const NcclLogCapture capture(NcclDebug{});
  // On every rank, though rank 0 alone writes: a rank that is to dump its topology takes part in one more exchange.
  const auto topology = dump_of("NCCL_TOPO_DUMP_FILE", environment);
  const auto graph = dump_of("NCCL_GRAPH_DUMP_FILE", environment);
  run_collectives(world, device);
  if (topology) probe.topology_xml = topology->text();
  if (graph) probe.graph_xml = graph->text();
  const auto logs = world.all_gather(capture.text());
  if (world.rank() != 0) return {};
  for (const std::string& log : logs) probe.log += log;
  return probe;
}

}  // namespace ddptrain
