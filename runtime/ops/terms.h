#pragma once

#include <span>
#include <utility>
#include <vector>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// A sum: tensors of one shape and type that are added in this order. Usually one; with more, an operation may write
/// partial sums to the first.
class Terms {
 public:
  Terms(const Tensor& one) : terms_{one} {}  // NOLINT(google-explicit-constructor)
  explicit Terms(std::vector<Tensor> terms) : terms_(std::move(terms)) {}

  const Tensor& first() const { return terms_.front(); }
  std::span<const Tensor> others() const { return std::span(terms_).subspan(1); }
  const std::vector<Tensor>& all() const { return terms_; }

 private:
  std::vector<Tensor> terms_;
};

}  // namespace ddptrain
