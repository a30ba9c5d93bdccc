#include "runtime/ops/quantisation.h"

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// CPUs have no FP8.
class CpuQuantisation final : public QuantisationOps {
 public:
  bool fits(std::int64_t, std::int64_t) const override { return false; }
  std::unique_ptr<Fp8Scales> make_scales(const std::vector<DType>&, const Tensor&) override {
    fail("scales of FP8 on a device without FP8");
  }
  void to_fp8(const Tensor& x, const Tensor& y, const Tensor&, bool) override {
    fail("{} to {} on a device without FP8", name_of(x.dtype), name_of(y.dtype));
  }
};

}  // namespace

std::unique_ptr<QuantisationOps> QuantisationOps::on_cpu(Device&) { return std::make_unique<CpuQuantisation>(); }

}  // namespace ddptrain
