#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace ddptrain {

/// e4m3 and e5m2 are FP8 (Micikevicius et al., "FP8 formats for deep learning", arXiv:2209.05433): see Tensor.
enum class DType : std::uint8_t { f64, f32, bf16, i32, u8, e4m3, e5m2 };

constexpr bool is_fp8(DType dtype) { return dtype == DType::e4m3 || dtype == DType::e5m2; }
std::size_t size_of(DType dtype);  ///< Bytes of an element; FP8 keeps each twice.
const char* name_of(DType dtype);

/// How the arithmetic of a run is done: the type of weights, activations and gradients, and, for tf32, that matrix
/// products of f32 values may round their inputs to 10 bits of mantissa. bf16 keeps f32 master weights.
/// fp64 exists on the CPU only and serves gradient checks.
enum class Precision : std::uint8_t { fp64, fp32, tf32, bf16 };

const char* name_of(Precision precision);
DType compute_dtype(Precision precision);  ///< Type of weights, activations and gradients.
DType master_dtype(Precision precision);   ///< Type of master weights and optimizer moments.

using Shape = std::vector<std::int64_t>;
std::int64_t element_count(const Shape& shape);

struct Fp8Scale;  ///< See QuantisationOps::make_scales.

/// A view of row-major (contiguous) memory; owns nothing. One of FP8 is a matrix [rows, columns], rows being all
/// dimensions but the last, that is there twice: as it is, and behind that transposed.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::f32;
  Shape shape;
  Fp8Scale* scale = nullptr;  ///< FP8 only.

  std::int64_t size() const { return element_count(shape); }
  std::size_t bytes() const { return static_cast<std::size_t>(size()) * size_of(dtype); }
  std::int64_t dim(std::size_t i) const { return shape.at(i); }
  explicit operator bool() const { return data != nullptr; }

  template <class T>
  T* as() const {
    return static_cast<T*>(data);
  }

  /// [count]: the elements from number `begin` on.
  Tensor stretch(std::int64_t begin, std::int64_t count) const {
    return {as<char>() + static_cast<std::size_t>(begin) * size_of(dtype), dtype, {count}};
  }

  /// The first `rows` of the leading dimension.
  Tensor first(std::int64_t rows) const {
    Tensor view = *this;
    view.shape.at(0) = rows;
    return view;
  }
};

}  // namespace ddptrain
