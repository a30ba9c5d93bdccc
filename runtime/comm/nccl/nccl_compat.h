#pragma once

#include <nccl.h>

/// What NCCL's headers of 2.18 and newer lack beside the newest: the project compiles against all of them, and its code
/// asks kHasSymmetricWindows before it uses what is only declared here.

namespace ddptrain {

/// Windows of symmetric memory, for which NCCL has fast kernels.
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

#ifndef NCCL_WIN_REQUIRED_ALIGNMENT  // came with 2.28
#define NCCL_WIN_REQUIRED_ALIGNMENT 4096
#endif
