#include "runtime/ops/optimizer.h"

#include <bit>

#include "runtime/core/error.h"

namespace ddptrain {

const OptimizerRule& rule_for(OptimizerKind kind, const UpdateSlice& slice) {
  const auto index = static_cast<std::size_t>(kind);
  DDP_CHECK(index < kOptimizerRules.size(), "optimizer {}: there is no such rule", index);
  const OptimizerRule& rule = kOptimizerRules[index];
  for (std::size_t i = 0; i < rule.slots; ++i) {
    DDP_CHECK(slice.state[i] != nullptr, "{} keeps {} slots, of which number {} has no memory", rule.name, rule.slots,
              i);
  }
  return rule;
}

void require_tree(const Tensor& leaves) {
  DDP_CHECK(leaves.shape.size() == 2 && std::has_single_bit(static_cast<std::uint64_t>(leaves.dim(0))),
            "add_tree: leaves are [rows, count], with a power of two of rows");
}

}  // namespace ddptrain
