#pragma once

#include "benchmarks/ddpbench/collectives/collective.h"
#include "benchmarks/ddpbench/session.h"
#include "runtime/diagnostics/nccl_log.h"

namespace ddptrain::bench {

/// Adds NCCL's choices, from its log, to the result of ddpbench allreduce: to `result` "nccl" with version, transport
/// and channels; to each entry of "results", by its "bytes", algorithm, protocol and channels (0: not in the log).
/// Entries whose size is not in the log stay unchanged.
void add_nccl(Json& result, const NcclLog& log, Collective collective);

/// These choices as a text such as "Ring LL to 64 KiB, Ring Simple to 1 GiB"; empty if no entry has an algorithm.
std::string choices_text(const Json& results);

}  // namespace ddptrain::bench
