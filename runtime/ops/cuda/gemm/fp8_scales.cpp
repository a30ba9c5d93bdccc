#include "runtime/ops/cuda/gemm/fp8_scales.h"

#include "runtime/core/error.h"
#include "runtime/device/cuda/cuda_utils.h"
#include "runtime/ops/shapes.h"

namespace ddptrain::cuda {

namespace {

static_assert(sizeof(Fp8State) == QuantisationOps::kStateSize * sizeof(float));

class CudaFp8Scales final : public Fp8Scales {
 public:
  CudaFp8Scales(Device& device, const std::vector<DType>& formats, const Tensor& states)
      : device_(device), states_(states.as<Fp8State>()) {
    const auto count = static_cast<std::int64_t>(formats.size());
    expect_tensor("make_scales", "states", states, DType::f32, {count, QuantisationOps::kStateSize});
    DDP_CHECK(!is_capturing(stream()), "scales cannot be made while a graph is captured");
    std::vector<Fp8State> initial;
    for (const DType format : formats) {
      DDP_CHECK(is_fp8(format), "{} is not FP8", name_of(format));
      scales_.push_back({states_ + initial.size(), format});
      initial.push_back({.limit = largest_of(format)});
    }
    device.copy_to_device(states_, initial.data(), states.bytes());
  }

  Fp8Scale* at(std::size_t i) override { return &scales_.at(i); }
  void renew() override { cuda::renew(states_, scales_.size(), stream()); }
  void forget_magnitudes() override { forget_largest(states_, scales_.size(), stream()); }
  void restored() override {
    std::vector<Fp8State> states(scales_.size());
    device_.copy_to_host(states.data(), states_, states.size() * sizeof(Fp8State));
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_[i].used = states[i].used != 0;
  }

 private:
  cudaStream_t stream() const { return static_cast<cudaStream_t>(device_.compute_stream().handle); }

  Device& device_;
  Fp8State* states_;
  std::vector<Fp8Scale> scales_;
};

}  // namespace

std::unique_ptr<Fp8Scales> make_fp8_scales(Device& device, const std::vector<DType>& formats, const Tensor& states) {
  return std::make_unique<CudaFp8Scales>(device, formats, states);
}

void note_use(Fp8Scale& scale, cudaStream_t stream) {
  scale.used = true;
  DDP_CUDA(cudaMemsetAsync(&scale.state->used, 1, sizeof(scale.state->used), stream));
}

}  // namespace ddptrain::cuda
