#pragma once

#include <span>
#include <utility>
#include <vector>

#include "runtime/core/tensor.h"

namespace ddptrain {

/// The terms of a sum, such as the terms of ranks that split a layer: tensors of one shape and type, which are added in
/// this order. The sum is rounded to their type. Usually there is one; if there are several, an operation may overwrite
/// the first.
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
