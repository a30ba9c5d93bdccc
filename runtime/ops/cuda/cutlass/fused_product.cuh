#pragma once

#include <cutlass/array.h>
#include <cutlass/bfloat16.h>
#include <cutlass/gemm/device/gemm_universal_adapter.h>
#include <cute/tensor.hpp>
#include <cutlass/epilogue/collective/collective_builder.hpp>
#include <cutlass/epilogue/fusion/sm90_callbacks_tma_warpspecialized.hpp>
#include <cutlass/gemm/collective/collective_builder.hpp>
#include <cutlass/gemm/kernel/gemm_universal.hpp>

#include <type_traits>

#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/cuda/cutlass/fused_products.h"
#include "runtime/ops/cuda/gelu.cuh"

/// What the products by CUTLASS share. It takes a minute to compile each of them: for .cu files of few products alone.

namespace ddptrain::cuda {

using Bf16 = cutlass::bfloat16_t;
using RowMajor = cutlass::layout::RowMajor;
using ColumnMajor = cutlass::layout::ColumnMajor;
inline constexpr auto kRounding = cutlass::FloatRoundStyle::round_to_nearest;

/// A tile of FusedTile in CUTLASS's terms.
template <int kRows, int kColumns, class Schedule, class Epilogue>
struct Tile {
  using Shape = cute::Shape<cute::Int<kRows>, cute::Int<kColumns>, cute::_64>;
  using MainSchedule = Schedule;
  using EpilogueSchedule = Epilogue;
  static constexpr int kHeight = kRows;
};
using Whole128x256 = Tile<128, 256, cutlass::gemm::KernelTmaWarpSpecializedCooperative,
                          cutlass::epilogue::TmaWarpSpecializedCooperative>;
using Turns128x128 =
    Tile<128, 128, cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::epilogue::TmaWarpSpecialized>;
using Turns64x256 =
    Tile<64, 256, cutlass::gemm::KernelTmaWarpSpecializedPingpong, cutlass::epilogue::TmaWarpSpecialized>;

/// Of a matrix without gaps whose rows, or columns where these lie together, are `leading` elements apart.
template <class Stride>
Stride packed(std::int64_t leading) {
  Stride stride{};
  if constexpr (cute::is_static<cute::tuple_element_t<0, Stride>>::value) {
    cute::get<1>(stride) = leading;
  } else {
    cute::get<0>(stride) = leading;
  }
  return stride;
}

/// Calls `work` with the type of the tile.
template <class Work>
void with_tile(FusedTile tile, Work&& work) {
  switch (tile) {
    case FusedTile::whole_128x256:
      return work(Whole128x256{});
    case FusedTile::turns_128x128:
      return work(Turns128x128{});
    case FusedTile::turns_64x256:
      return work(Turns64x256{});
  }
}

template <class T, class Source>
using EpilogueOf = cutlass::epilogue::collective::detail::EpilogueDescriptor<
    typename T::Shape, cutlass::epilogue::collective::EpilogueTileAuto, Source, Bf16, typename T::EpilogueSchedule>;

/// a [m, k] row-major; b [k, n] as LayoutB says; `Source` [m, n] is read by the epilogue, or void.
template <class T, class LayoutB, class Source, class Fusion>
struct FusedGemm {
  using Cluster = cute::Shape<cute::_2, cute::_1, cute::_1>;
  using Epilogue = typename cutlass::epilogue::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, typename T::Shape, Cluster,
      cutlass::epilogue::collective::EpilogueTileAuto, float, float, Source, RowMajor, 8, Bf16, RowMajor, 8,
      typename T::EpilogueSchedule, Fusion>::CollectiveOp;
  using Main = typename cutlass::gemm::collective::CollectiveBuilder<
      cutlass::arch::Sm90, cutlass::arch::OpClassTensorOp, Bf16, RowMajor, 8, Bf16, LayoutB, 8, float,
      typename T::Shape, Cluster,
      cutlass::gemm::collective::StageCountAutoCarveout<static_cast<int>(sizeof(typename Epilogue::SharedStorage))>,
      typename T::MainSchedule>::CollectiveOp;
  using Kernel = cutlass::gemm::kernel::GemmUniversal<cute::Shape<int, int, int, int>, Main, Epilogue>;
  using Gemm = cutlass::gemm::device::GemmUniversalAdapter<Kernel>;

  static void run(const FusedSizes& s, const void* a, const void* b, const void* source, void* c,
                  const typename Fusion::Arguments& fusion, cudaStream_t stream) {
    const int m = static_cast<int>(s.m), n = static_cast<int>(s.n), k = static_cast<int>(s.k);
    constexpr bool kAlongN = std::is_same_v<LayoutB, RowMajor>;
    typename Gemm::Arguments arguments{cutlass::gemm::GemmUniversalMode::kGemm,
                                       {m, n, k, 1},
                                       {static_cast<const Bf16*>(a), packed<typename Kernel::StrideA>(k),
                                        static_cast<const Bf16*>(b), packed<typename Kernel::StrideB>(kAlongN ? n : k)},
                                       {fusion, static_cast<const Source*>(source), packed<typename Kernel::StrideC>(n),
                                        static_cast<Bf16*>(c), packed<typename Kernel::StrideD>(n)}};
    arguments.hw_info.sm_count = s.multiprocessors;
    require(Gemm::get_workspace_size(arguments) == 0, "a fused product needs a workspace");
    Gemm gemm;
    require(gemm.initialize(arguments, nullptr, stream) == cutlass::Status::kSuccess,
            "CUTLASS does not take a fused product");
    require(gemm.run(stream) == cutlass::Status::kSuccess, "a fused product could not be launched");
  }
};

}  // namespace ddptrain::cuda
