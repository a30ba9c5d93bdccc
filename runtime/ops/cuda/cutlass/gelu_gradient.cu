#include "runtime/ops/cuda/cutlass/fused_product.cuh"

namespace ddptrain::cuda {

namespace {

namespace fusion = cutlass::epilogue::fusion;

/// The product times the slope of the GELU at elements of bf16, in f32.
template <class T>
struct TimesGeluSlope;
template <int kCount>
struct TimesGeluSlope<cutlass::Array<float, kCount>> {
  CUTLASS_DEVICE cutlass::Array<float, kCount> operator()(const cutlass::Array<float, kCount>& product,
                                                          const cutlass::Array<float, kCount>& pre) const {
    cutlass::Array<float, kCount> dpre;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) dpre[i] = product[i] * gelu_slope_of<__nv_bfloat16>(pre[i]);
    return dpre;
  }
};

/// Each block adds up the rows of its tile, as they are stored, in a fixed order.
template <class T>
struct GeluGradient {
  using Row = cute::Stride<cute::_0, cute::_1, cute::_0>;
  using Slope = fusion::Sm90EVT<fusion::Sm90Compute<TimesGeluSlope, Bf16, float, kRounding>, fusion::Sm90AccFetch,
                                fusion::Sm90SrcFetch<Bf16>>;
  using Fusion = fusion::Sm90EVT<fusion::Sm90RowReduction<cutlass::plus, cutlass::plus, cutlass::plus, 0,
                                                          typename T::Shape, float, float, kRounding, Row, 4,
                                                          /*EnableNullptr=*/true, /*FinalReduction=*/false>,
                                 Slope>;
  using Gemm = FusedGemm<T, RowMajor, Bf16, Fusion>;

  static void run(const FusedSizes& s, const void* dy, const void* weight, const void* pre, void* dpre, float* partials,
                  cudaStream_t stream) {
    const typename Slope::Arguments slope = {{}, {}, {}};
    Gemm::run(s, dy, weight, pre, dpre, {slope, {partials, 0.0f, {}}}, stream);
  }
};

}  // namespace

void fused_gelu_gradient(FusedTile tile, const FusedSizes& sizes, const void* dy, const void* weight, const void* pre,
                         void* dpre, float* partials, cudaStream_t stream) {
  with_tile(tile,
            [&](auto chosen) { GeluGradient<decltype(chosen)>::run(sizes, dy, weight, pre, dpre, partials, stream); });
}

}  // namespace ddptrain::cuda
