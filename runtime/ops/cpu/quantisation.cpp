#include "runtime/ops/quantisation.h"

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// CPUs have no FP8; fits() says where a meta device that stands for a GPU would have it.
class CpuQuantisation final : public QuantisationOps {
 public:
  explicit CpuQuantisation(const Device& device) : fp8_(device.options().fp8) {}

  bool fits(std::int64_t rows, std::int64_t columns) const override {
    return fp8_ && rows % 16 == 0 && columns % 16 == 0;
  }
  std::unique_ptr<Fp8Scales> make_scales(const std::vector<DType>&, const Tensor&) override {
    fail("scales of FP8 on a device without FP8");
  }
  void to_fp8(const Tensor& x, const Tensor& y, const Tensor&, bool) override {
    fail("{} to {} on a device without FP8", name_of(x.dtype), name_of(y.dtype));
  }

 private:
  bool fp8_;
};

}  // namespace

std::unique_ptr<QuantisationOps> QuantisationOps::on_cpu(Device& device) {
  return std::make_unique<CpuQuantisation>(device);
}

}  // namespace ddptrain
