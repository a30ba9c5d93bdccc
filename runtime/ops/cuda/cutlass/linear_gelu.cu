#include "runtime/ops/cuda/cutlass/fused_product.cuh"

namespace ddptrain::cuda {

namespace {

namespace fusion = cutlass::epilogue::fusion;

/// The GELU of elements of bf16, in f32.
template <class T>
struct GeluOf;
template <int kCount>
struct GeluOf<cutlass::Array<float, kCount>> {
  CUTLASS_DEVICE cutlass::Array<float, kCount> operator()(const cutlass::Array<float, kCount>& x) const {
    cutlass::Array<float, kCount> y;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) y[i] = gelu_of<__nv_bfloat16>(x[i]);
    return y;
  }
};

/// The sum with the bias is rounded to bf16, stored, and its GELU taken.
template <class T>
struct LinearGelu {
  using Epilogue = EpilogueOf<T, void>;
  using Store = cutlass::epilogue::collective::detail::AuxStoreDescriptor<Epilogue, RowMajor, Bf16>;
  using Row = cute::Stride<cute::_0, cute::_1, cute::_0>;
  using Bias = fusion::Sm90RowBroadcast<0, typename T::Shape, Bf16, float, Row>;
  using Sum = fusion::Sm90EVT<fusion::Sm90Compute<cutlass::plus, Bf16, float, kRounding>, fusion::Sm90AccFetch, Bias>;
  using Pre = fusion::Sm90EVT<
      fusion::Sm90AuxStore<Store::Stages, typename Epilogue::EpilogueTile, Bf16, kRounding, typename Store::Stride,
                           typename Store::SmemLayoutAtom, typename Store::CopyOpR2S>,
      Sum>;
  using Fusion = fusion::Sm90EVT<fusion::Sm90Compute<GeluOf, Bf16, float, kRounding>, Pre>;
  using Gemm = FusedGemm<T, ColumnMajor, void, Fusion>;

  static void run(const FusedSizes& s, const void* x, const void* weight, const void* bias, void* pre, void* y,
                  cudaStream_t stream) {
    const typename Sum::Arguments sum = {{}, {static_cast<const Bf16*>(bias), Bf16(0), {}}, {}};
    const typename Pre::Arguments stored = {sum, {static_cast<Bf16*>(pre), packed<typename Store::Stride>(s.n)}};
    Gemm::run(s, x, weight, nullptr, y, {stored, {}}, stream);
  }
};

}  // namespace

bool suits_fused_products(const FusedSizes& s) {
  constexpr std::int64_t kMost = 1 << 30;
  const bool whole = s.m > 0 && s.n > 0 && s.k > 0 && s.n % 8 == 0 && s.k % 8 == 0;
  return whole && s.m < kMost && s.n < kMost && s.k < kMost && multiplies_by_warpgroups();
}

void fused_linear_gelu(FusedTile tile, const FusedSizes& sizes, const void* x, const void* weight, const void* bias,
                       void* pre, void* y, cudaStream_t stream) {
  with_tile(tile, [&](auto chosen) { LinearGelu<decltype(chosen)>::run(sizes, x, weight, bias, pre, y, stream); });
}

}  // namespace ddptrain::cuda
