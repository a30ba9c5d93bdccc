#include "runtime/ops/cuda/ptx/tensor_map.h"

#include <array>

#include "runtime/core/error.h"
#include "runtime/device/cuda/cuda_utils.h"

namespace ddptrain::cuda {

namespace {

constexpr cuuint32_t kTileColumns = 64;

/// Function of the driver, which programs are not linked with.
decltype(&cuTensorMapEncodeTiled) encoder() {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
#if CUDART_VERSION >= 12050
  DDP_CUDA(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &found));
#else
  DDP_CUDA(cudaGetDriverEntryPoint("cuTensorMapEncodeTiled", &function, cudaEnableDefault, &found));
#endif
  DDP_CHECK(found == cudaDriverEntryPointSuccess, "the CUDA driver has no cuTensorMapEncodeTiled: it needs CUDA 12");
  return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function);
}

}  // namespace

CUtensorMap swizzled_tiles(const void* matrix, std::int64_t rows, std::int64_t columns, int tile_rows) {
  static const auto encode = encoder();
  const std::array sizes = {static_cast<cuuint64_t>(columns), static_cast<cuuint64_t>(rows)};
  const std::array strides = {static_cast<cuuint64_t>(columns) * 2};
  const std::array tile = {kTileColumns, static_cast<cuuint32_t>(tile_rows)};
  const std::array<cuuint32_t, 2> steps = {1, 1};
  CUtensorMap map;
  const CUresult status =
      encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<void*>(matrix), sizes.data(), strides.data(),
             tile.data(), steps.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
             CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  DDP_CHECK(status == CUDA_SUCCESS, "no tensor map of {} x {} elements: driver error {}", rows, columns,
            static_cast<int>(status));
  return map;
}

}  // namespace ddptrain::cuda
