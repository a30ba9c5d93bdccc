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

/// Of kCount lanes by kCount pieces of sums: each lane ends with the sum of its own piece over all lanes, in piece 0.
template <int kHalf, class Pieces, class Lanes>
CUTLASS_DEVICE void fold(Pieces& pieces, int lane, const Lanes& lanes) {
  if constexpr (kHalf > 0) {
    const bool upper = (lane & kHalf) != 0;
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kHalf * cute::size<0>(pieces); ++i) {
      const auto place = cute::make_coord(i % cute::size<0>(pieces), i / cute::size<0>(pieces));
      const auto other = cute::make_coord(i % cute::size<0>(pieces), i / cute::size<0>(pieces) + kHalf);
      const float sent = upper ? pieces(place) : pieces(other);
      const float kept = upper ? pieces(other) : pieces(place);
      pieces(place) = kept + __shfl_xor_sync(0xffffffffu, sent, lanes(kHalf, cute::_0{}));
    }
    fold<kHalf / 2>(pieces, lane, lanes);
  }
}

/// What Sm90RowReduction does, for several warps along the rows. Its own loop over the pieces is not unrolled, and so
/// keeps all sums in memory from the first element on. Rows beyond the last one are 0: no need to leave them out.
template <class Callbacks>
struct UnrolledSums : Callbacks {
  CUTLASS_DEVICE explicit UnrolledSums(Callbacks&& callbacks) : Callbacks(cute::move(callbacks)) {}

  template <class Accumulator, class Element, int kCount>
  CUTLASS_DEVICE cutlass::Array<Element, kCount> visit(const cutlass::Array<Accumulator, kCount>&, int v, int m, int n,
                                                       const cutlass::Array<Element, kCount>& elements) {
    if (this->params.ptr_row == nullptr) return elements;
    auto sums = cute::get<1>(this->args_tuple)(cute::_, cute::_, cute::_, m, n);
    CUTLASS_PRAGMA_UNROLL
    for (int i = 0; i < kCount; ++i) sums(v * kCount + i) += static_cast<float>(elements[i]);
    return elements;
  }

  template <class Buffer, class Sync, class Visited>
  CUTLASS_DEVICE void reduce(Buffer&& buffer, const Sync& sync, int, int, bool is_last, const Visited&) {
    if (!is_last || this->params.ptr_row == nullptr) return;
    auto& [ref_src, row, coordinates, g_row, place, partials, shared_layout, lanes, lane, warps, warp, tile, end,
           end_of_thread, epilogue_tile, copy, thread] = this->args_tuple;
    if (!cute::elem_less(place(cute::_0{}, cute::_0{}), end)) return;  // a block of the cluster beyond the last row

    constexpr int kLanes = decltype(cute::size<0>(lanes))::value, kWarps = decltype(cute::size<0>(warps))::value;
    auto sums = cute::filter(row);
    constexpr int kEach = decltype(cute::size(sums))::value / kLanes;
    static_assert(kEach > 0 && kWarps > 1);
    auto pieces = cute::logical_divide(sums, cute::Int<kEach>{});
    fold<kLanes / 2>(pieces, cute::get<0>(lane), lanes);

    float* const memory = reinterpret_cast<float*>(cute::raw_pointer_cast(buffer.data()));
    auto shared = cute::make_tensor(cute::make_smem_ptr(memory), shared_layout);
    static_assert(decltype(cute::cosize(shared.layout()))::value * sizeof(float) <=
                  decltype(cute::cosize(buffer.layout()))::value * sizeof(Bf16));
    sync();
    constexpr bool kReferenceSrc = cute::remove_cvref_t<decltype(ref_src)>::value;
    auto mine = cute::logical_divide(cute::filter(fusion::sm90_partition_for_epilogue<kReferenceSrc>(
                                         shared(cute::_, cute::_, cute::get<0>(warp)), epilogue_tile, copy, thread)),
                                     cute::Int<kEach>{});
    cute::copy_aligned(pieces(cute::_, cute::_0{}), mine(cute::_, cute::get<0>(lane)));
    sync();

    constexpr int kColumns = decltype(cute::size<1>(shared))::value;
    auto out = cute::filter(partials(cute::_, cute::_, cute::get<0>(tile), cute::get<3>(tile)));
    for (int column = thread; column < kColumns; column += cute::size(copy)) {
      float sum = memory[column];
      CUTLASS_PRAGMA_UNROLL
      for (int i = 1; i < kWarps; ++i) sum += memory[i * kColumns + column];
      out(column) = sum;
    }
    sync();
  }
};

/// Adds up the rows of a block's tile in a fixed order.
template <class T>
struct RowSums : fusion::Sm90RowReduction<cutlass::plus, cutlass::plus, cutlass::plus, 0, typename T::Shape, float,
                                          float, kRounding, cute::Stride<cute::_0, cute::_1, cute::_0>, 4,
                                          /*EnableNullptr=*/true, /*FinalReduction=*/false> {
  using Base = typename RowSums::Sm90RowReduction;
  using Base::Base;

  template <bool kReferenceSrc, class... Args>
  CUTLASS_DEVICE auto get_consumer_store_callbacks(const fusion::ConsumerStoreArgs<Args...>& args) {
    auto callbacks = Base::template get_consumer_store_callbacks<kReferenceSrc>(args);
    return UnrolledSums<decltype(callbacks)>(cute::move(callbacks));
  }
};

/// The sums are of dpre as it is stored.
template <class T>
struct GeluGradient {
  using Slope = fusion::Sm90EVT<fusion::Sm90Compute<TimesGeluSlope, Bf16, float, kRounding>, fusion::Sm90AccFetch,
                                fusion::Sm90SrcFetch<Bf16>>;
  using Fusion = fusion::Sm90EVT<RowSums<T>, Slope>;
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
