#include "runtime/core/tensor.h"

#include <functional>
#include <numeric>

#include "runtime/core/error.h"

namespace ddptrain {

std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return 8;
    case DType::f32:
      return 4;
    case DType::bf16:
      return 2;
    case DType::i32:
      return 4;
    case DType::u8:
      return 1;
    case DType::e4m3:
    case DType::e5m2:
      return 2;
  }
  fail("unknown dtype {}", static_cast<int>(dtype));
}

const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::f64:
      return "f64";
    case DType::f32:
      return "f32";
    case DType::bf16:
      return "bf16";
    case DType::i32:
      return "i32";
    case DType::u8:
      return "u8";
    case DType::e4m3:
      return "e4m3";
    case DType::e5m2:
      return "e5m2";
  }
  fail("unknown dtype {}", static_cast<int>(dtype));
}

const char* name_of(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return "fp64";
    case Precision::fp32:
      return "fp32";
    case Precision::tf32:
      return "tf32";
    case Precision::bf16:
      return "bf16";
  }
  fail("unknown precision {}", static_cast<int>(precision));
}

DType compute_dtype(Precision precision) {
  switch (precision) {
    case Precision::fp64:
      return DType::f64;
    case Precision::fp32:
    case Precision::tf32:
      return DType::f32;
    case Precision::bf16:
      return DType::bf16;
  }
  fail("unknown precision {}", static_cast<int>(precision));
}

DType master_dtype(Precision precision) { return precision == Precision::fp64 ? DType::f64 : DType::f32; }

std::int64_t element_count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace ddptrain
