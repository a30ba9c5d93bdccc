#include "runtime/ops/cuda/ptx/tensor_map.h"

#include <array>

#include "runtime/core/error.h"
#include "runtime/device/cuda/driver_function.h"

namespace ddptrain::cuda {

namespace {

constexpr cuuint32_t kTileColumns = 64;

decltype(&cuTensorMapEncodeTiled) encoder() {
  const auto function = driver_function<decltype(cuTensorMapEncodeTiled)>("cuTensorMapEncodeTiled");
  DDP_CHECK(function != nullptr, "the CUDA driver has no cuTensorMapEncodeTiled: it needs CUDA 12");
  return function;
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
