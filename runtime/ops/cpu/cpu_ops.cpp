#include "runtime/ops/cpu/cpu_ops.h"

#include "runtime/ops/reduction.h"

namespace ddptrain {
namespace {

/// Eigen cuts its sums by the size of the processor's caches. The same sizes everywhere give the same bits on every
/// processor with the same vector instructions.
constexpr std::ptrdiff_t kL1Bytes = 48 << 10;
constexpr std::ptrdiff_t kL2Bytes = 1 << 20;
constexpr std::ptrdiff_t kL3Bytes = 32 << 20;

}  // namespace

CpuOps::CpuOps(Device& device) : device_(dynamic_cast<CpuDevice&>(device)) {
  Eigen::setCpuCacheSizes(kL1Bytes, kL2Bytes, kL3Bytes);
}

Tensor CpuOps::add_up(const Terms& terms) {
  return device_.get<ReductionOps>().add_up(terms, device_.compute_stream());
}

void CpuOps::store_sums(const std::vector<double>& partial, const Tensor& sum, bool accumulate) {
  const std::int64_t columns = sum.size();
  with_scalar([&]<class T>(T) {
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

std::vector<std::uint32_t> batch_tokens(const char* what, const TokenBatch& batch, std::int64_t vocabulary) {
  const std::uint32_t length = batch.source.sequence + 1;
  const BatchRows rows(batch.order, batch.step);
  std::vector<std::uint32_t> tokens;
  tokens.reserve(static_cast<std::size_t>(batch.count) * length);
  for (std::uint32_t row = 0; row < static_cast<std::uint32_t>(batch.count); ++row) {
    const TokenWindow window = batch.source.window(rows[row]);
    for (std::uint32_t position = 0; position < length; ++position) {
      const std::uint32_t token = window[position];
      const std::int64_t all = batch.vocabulary_slice.all > 0 ? batch.vocabulary_slice.all : vocabulary;
      DDP_CHECK(token < all, "{}: token {} of window {} is not below the vocabulary's {}", what, token, rows[row], all);
      tokens.push_back(token);
    }
  }
  return tokens;
}

}  // namespace ddptrain
