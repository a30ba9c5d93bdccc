#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "runtime/core/tensor.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/device/device.h"

namespace ddptrain::cuda {

/// c [m, n] = op(a) [m, k] op(b) [k, n], all row-major and contiguous; op is the identity or the transpose, so that a
/// is stored as [m, k] or [k, m] and b as [k, n] or [n, k].
struct Gemm {
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
  bool transpose_a = false;
  bool transpose_b = false;
  /// Type of a and b: bf16, f32 or FP8. FP8 matrices are contiguous along k: transpose_b and not transpose_a.
  DType in = DType::f32;
  DType out = DType::f32;                    ///< Type of c and bias: `in` or f32; with FP8, bf16 or f32.
  bool accumulate = false;                   ///< Adds to c.
  std::optional<DType> in_b = std::nullopt;  ///< Type of b, if it is not `in`.

  auto operator<=>(const Gemm&) const = default;
};

/// Such as "64 x 768 x 3072 nt bf16 bf16 + f32": sizes, transposes and types of a and b, "+" if it accumulates, c.
std::string name_of(const Gemm& gemm);

/// Work that cuBLASLt adds to a multiplication, on its operands or on the result.
enum class Epilogue : std::uint8_t {
  none,
  bias,           ///< c += vector [n] in every row.
  gelu_bias,      ///< matrix [m, n] = c + vector [n]; c = gelu of that before it is rounded.
  gelu_gradient,  ///< c *= gelu'(matrix [m, n]), before c is rounded.
};

struct GemmTensors {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  void* vector = nullptr;          ///< Its elements have the type of c.
  void* matrix = nullptr;          ///< Likewise.
  const float* scale_a = nullptr;  ///< Fp8State::inverse_scale, for operands in FP8.
  const float* scale_b = nullptr;
};

/// Matrix products by cuBLASLt. Sums are kept in f32; f32 inputs are rounded to tf32 only for Precision::tf32. The
/// algorithm is chosen when a product is first seen: without `tune` its heuristic's first choice, and the same product
/// gives the same bits in every run on the same kind of GPU; with it, the choice in the device's TunedChoices, or the
/// fastest of a few. The products of a stream share a workspace.
class MatmulPlans {
 public:
  /// For Device::get: multiplications on a GPU's compute stream.
  static std::unique_ptr<MatmulPlans> make(Device& device);

  explicit MatmulPlans(Device& device);
  ~MatmulPlans();

  /// Queues the product, plus the bias tensors.vector [n] in every row if it is not null (not together with
  /// `accumulate`).
  void gemm(const Gemm& gemm, const GemmTensors& tensors, cudaStream_t stream);
  /// False, and nothing is queued, where cuBLASLt cannot do it.
  bool try_gemm(const Gemm& gemm, Epilogue epilogue, const GemmTensors& tensors, cudaStream_t stream);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace ddptrain::cuda
