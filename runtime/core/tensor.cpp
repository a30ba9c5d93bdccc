#include "runtime/core/tensor.h"

#include <array>
#include <functional>
#include <numeric>

namespace ddptrain {

namespace {

struct DTypeInfo {
  const char* name;
  std::size_t bytes;
};

/// By DType.
constexpr std::array<DTypeInfo, 7> kDTypes = {
    {{"f64", 8}, {"f32", 4}, {"bf16", 2}, {"i32", 4}, {"u8", 1}, {"e4m3", 2}, {"e5m2", 2}}};

struct PrecisionInfo {
  const char* name;
  DType compute;
};

/// By Precision.
constexpr std::array<PrecisionInfo, 4> kPrecisions = {
    {{"fp64", DType::f64}, {"fp32", DType::f32}, {"tf32", DType::f32}, {"bf16", DType::bf16}}};

const DTypeInfo& info(DType dtype) { return kDTypes.at(static_cast<std::size_t>(dtype)); }
const PrecisionInfo& info(Precision precision) { return kPrecisions.at(static_cast<std::size_t>(precision)); }

}  // namespace

std::size_t size_of(DType dtype) { return info(dtype).bytes; }
const char* name_of(DType dtype) { return info(dtype).name; }
const char* name_of(Precision precision) { return info(precision).name; }
DType compute_dtype(Precision precision) { return info(precision).compute; }
DType master_dtype(Precision precision) { return precision == Precision::fp64 ? DType::f64 : DType::f32; }

std::int64_t element_count(const Shape& shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

}  // namespace ddptrain
