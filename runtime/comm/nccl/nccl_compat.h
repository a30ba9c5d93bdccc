#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <string>

/// Declarations that older NCCL headers lack, so that the project compiles with NCCL 2.18 and newer. Check
/// kHasSymmetricWindows before a call of a function that this header had to declare.

namespace ddptrain {

/// Whether NCCL has windows of symmetric memory, for which it has fast kernels.
inline constexpr bool kHasSymmetricWindows = NCCL_VERSION_CODE >= NCCL_VERSION(2, 27, 3);

}  // namespace ddptrain

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 18, 0)
#error "NCCL 2.18 or newer is needed"
#endif

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 19, 0)
inline ncclResult_t ncclMemAlloc(void**, size_t) { return ncclInvalidUsage; }
inline ncclResult_t ncclMemFree(void*) { return ncclInvalidUsage; }
#endif

#if NCCL_VERSION_CODE < NCCL_VERSION(2, 27, 3)
using ncclWindow_t = void*;
#define NCCL_WIN_COLL_SYMMETRIC 1
inline ncclResult_t ncclCommWindowRegister(ncclComm_t, void*, size_t, ncclWindow_t*, int) { return ncclInvalidUsage; }
inline ncclResult_t ncclCommWindowDeregister(ncclComm_t, ncclWindow_t) { return ncclInvalidUsage; }
#endif

namespace ddptrain {

/// ncclAllReduce (sum) with the algorithm and protocol `choice`, such as RING_LL; empty: NCCL chooses. Returns an error
/// if this NCCL or this job does not have it.
inline ncclResult_t all_reduce_by(const std::string& choice, const void* from, void* to, size_t count,
                                  ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
  if (choice.empty()) return ncclAllReduce(from, to, count, type, ncclSum, comm, stream);
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 31, 0)
  ncclCollConfig_t config = NCCL_COLLCONFIG_INITIALIZER;
  config.algSelection = choice.c_str();
  return ncclAllReduceConfig(from, to, count, type, ncclSum, comm, stream, &config);
#else
  return ncclInvalidUsage;
#endif
}

}  // namespace ddptrain

#ifndef NCCL_WIN_REQUIRED_ALIGNMENT  // came with 2.28
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#endif
