#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

void CpuOps::store_sums(const std::vector<double>& partial, const Tensor& sum, bool accumulate) {
  const std::int64_t columns = sum.size();
  with_scalar([&](auto scalar) {
    using T = decltype(scalar);
    T* out = sum.as<T>();
    for (std::int64_t column = 0; column < columns; ++column) {
      double total = accumulate ? static_cast<double>(out[column]) : 0.0;
      for (int thread = 0; thread < threads(); ++thread) {
        total += partial[static_cast<std::size_t>(thread * columns + column)];
      }
      out[column] = static_cast<T>(total);
    }
  });
}

}  // namespace ddptrain
