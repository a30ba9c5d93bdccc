#include "runtime/ops/cached_attention.h"

#include <algorithm>
#include <cmath>
#include <numbers>

#include "runtime/ops/cuda/attention/cached_attention.cuh"
#include "runtime/ops/cuda/cuda_ops.h"

namespace ddptrain::cuda {

namespace {

using namespace cached_attention;

constexpr std::int64_t kLeastStretch = 32;
constexpr std::int64_t kMostStretches = 64;
constexpr std::int64_t kMostShared = 8192;  // rows and groups of heads whose positions several blocks share
constexpr int kMostHeadSize = 256;

class CudaCachedAttention final : public CachedAttentionOps, CudaOps {
 public:
  explicit CudaCachedAttention(Device& device)
      : CudaOps(device), arrived_(device.allocate(kMostShared * sizeof(std::uint32_t))) {}

  void attention(const Tensor& qkv, const GroupedHeads& heads, const std::int64_t* first_position, const Tensor& keys,
                 const Tensor& values, const Tensor& out) override {
    attend(qkv, heads, nullptr, first_position, keys, values, out);
  }

  /// One kernel does both for texts of one row whose heads fill the lanes of a warp.
  void rotate_and_attend(const Tensor& qkv, const GroupedHeads& heads, const Tensor& frequencies,
                         const std::int64_t* first_position, const Tensor& keys, const Tensor& values,
                         const Tensor& out) override {
    const bool fills_lanes = heads.head_size == 64 || heads.head_size == 128;
    if (qkv.dim(1) == 1 && fills_lanes && frequencies) {
      expect_tensor("rotate_and_attend", "frequencies", frequencies, DType::f32, {heads.head_size / 2});
      return attend(qkv, heads, frequencies.as<float>(), first_position, keys, values, out);
    }
    auto& grouped = device_.get<GroupedAttentionOps>();
    grouped.rotate(qkv, heads, frequencies, first_position, GroupedAttentionOps::Turn::forward);
    attend(qkv, heads, nullptr, first_position, keys, values, out);
  }

 private:
  /// `frequencies` may be null: nothing is turned.
  void attend(const Tensor& qkv, const GroupedHeads& heads, const float* frequencies,
              const std::int64_t* first_position, const Tensor& keys, const Tensor& values, const Tensor& out) {
    const CachedAttentionShape s = check_cached_attention(qkv, heads, keys, values, out, dtype());
    require(heads.head_size <= kMostHeadSize, "cached attention: a head of more than 256 columns");
    if (qkv.size() == 0) return;
    const std::int64_t rows = s.batch * s.sequence;
    const std::int64_t shared = std::max(kLeastStretch, (s.capacity + kMostStretches - 1) / kMostStretches);
    const bool are_few = rows <= kFewRows && rows * heads.heads <= kMostShared;
    const std::int64_t stretch = are_few ? shared : s.capacity;
    const Cached a{.sequence = static_cast<std::uint32_t>(s.sequence),
                   .capacity = static_cast<std::uint32_t>(s.capacity),
                   .heads = static_cast<std::uint32_t>(heads.heads),
                   .key_heads = static_cast<std::uint32_t>(heads.key_heads),
                   .head_size = static_cast<std::uint32_t>(heads.head_size),
                   .stretch = static_cast<std::uint32_t>(stretch),
                   .stretches = ceil_div(s.capacity, stretch),
                   .scale = std::numbers::log2e_v<float> / std::sqrt(static_cast<float>(heads.head_size)),
                   .first_position = first_position,
                   .frequencies = frequencies};
    float* partials = nullptr;
    if (a.stretches > 1) {
      const std::size_t count = static_cast<std::size_t>(rows * heads.heads) * a.stretches * a.partial_size();
      partials = scratch().reserve_elements<float>(count, stream());
    }
    with_element(dtype(), [&]<class T>(T) { launch<T>(a, rows, qkv, keys, values, out, partials); });
  }

  template <class T>
  void launch(const Cached& a, std::int64_t rows, const Tensor& qkv, const Tensor& keys, const Tensor& values,
              const Tensor& out, float* partials) {
    const auto run = [&]<int E, bool kTurns>() {
      const std::uint32_t tiles = ceil_div(a.heads / a.key_heads, queries_of(E, kTurns));
      const dim3 grid(static_cast<unsigned>(rows) * a.stretches, a.key_heads * tiles);
      launch_early(attend_kernel<T, E, kTurns>, grid, kThreads, 0, stream(), a, qkv.as<T>(), keys.as<T>(),
                   values.as<T>(), out.as<T>(), partials, static_cast<std::uint32_t*>(arrived_.data()));
    };
    if (a.frequencies != nullptr) {
      return a.head_size == 64 ? run.template operator()<2, true>() : run.template operator()<4, true>();
    }
    if (a.head_size <= 32) return run.template operator()<1, false>();
    if (a.head_size <= 64) return run.template operator()<2, false>();
    if (a.head_size <= 128) return run.template operator()<4, false>();
    run.template operator()<8, false>();
  }

  Buffer arrived_;  ///< Counters of blocks: see is_last(). Zero.
};

}  // namespace

}  // namespace ddptrain::cuda

std::unique_ptr<ddptrain::CachedAttentionOps> ddptrain::CachedAttentionOps::on_cuda(Device& device) {
  return std::make_unique<cuda::CudaCachedAttention>(device);
}
