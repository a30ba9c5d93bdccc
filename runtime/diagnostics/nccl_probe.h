#pragma once

#include <string>

#include "runtime/comm/world.h"
#include "runtime/device/device.h"

namespace ddptrain {

/// Log of NCCL's start over the ranks; on rank 0 only.
struct NcclProbe {
  std::string log;           ///< Logs of all ranks, one after the other.
  std::string topology_xml;  ///< NCCL_TOPO_DUMP_FILE of rank 0; empty if the user has set that variable.
  std::string graph_xml;     ///< NCCL_GRAPH_DUMP_FILE of rank 0; likewise.
};

/// Makes a communicator over the ranks and sums 4 KiB, 1 MiB and 64 MiB over them, so that NCCL connects what it uses
/// for small and large messages. NCCL_DEBUG of the user is set aside meanwhile. Collective; on every rank before NCCL's
/// first call in this process.
NcclProbe probe_nccl(const World& world, Device& device);

}  // namespace ddptrain
