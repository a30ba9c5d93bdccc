#pragma once

#include "benchmarks/ddpbench/collective.h"
#include "benchmarks/ddpbench/session.h"
#include "runtime/diagnostics/nccl_log_parser.h"

namespace ddptrain::bench {

/// Adds to a file of ddpbench allreduce what NCCL's log says that it used: to `result` "nccl" with version, transport
/// and channels; to each of its "results", by its "bytes", algorithm, protocol and channels (0: the log does not tell).
/// Sizes that the log does not name stay as they are.
void add_nccl(Json& result, const NcclLog& log, Collective collective);

/// "Ring LL to 64 KiB, Ring Simple to 1 GiB" of such results; empty where none has an algorithm.
std::string choices_text(const Json& results);

}  // namespace ddptrain::bench
