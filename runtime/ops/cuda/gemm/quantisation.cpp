#include "runtime/ops/quantisation.h"

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/fp8.h"

namespace ddptrain {

namespace cuda {

Fp8Matrix fp8_matrix(const Tensor& tensor) {
  DDP_CHECK(tensor.scale != nullptr && tensor.scale->format == tensor.dtype, "a tensor of {} without a scale of it",
            name_of(tensor.dtype));
  const std::int64_t columns = tensor.shape.back();
  const std::int64_t rows = tensor.size() / columns;
  auto* values = tensor.as<std::uint8_t>();
  return {.format = tensor.dtype,
          .rows = static_cast<std::uint32_t>(rows),
          .columns = static_cast<std::uint32_t>(columns),
          .values = values,
          .transposed = values + rows * columns,
          .state = tensor.scale->state};
}

Fp8Matrix fp8_output(const Tensor& y, cudaStream_t stream) {
  Fp8Matrix to = fp8_matrix(y);
  DDP_CHECK(to.rows % 16 == 0 && to.columns % 16 == 0, "a matrix of {} x {} in FP8: multiples of 16 are needed",
            to.rows, to.columns);
  to.first_use = !y.scale->used;
  DDP_CHECK(!to.first_use || !is_capturing(stream),
            "a tensor in FP8 must be written once before it is captured in a graph");
  if (!to.first_use) return to;
  y.scale->used = true;
  DDP_CUDA(cudaMemsetAsync(&to.state->used, 1, sizeof(to.state->used), stream));
  return to;
}

}  // namespace cuda

namespace {

using cuda::Fp8State;

static_assert(sizeof(Fp8State) == QuantisationOps::kStateSize * sizeof(float));

class CudaFp8Scales final : public Fp8Scales, CudaOps {
 public:
  CudaFp8Scales(Device& device, const std::vector<DType>& formats, const Tensor& states)
      : CudaOps(device), states_(states.as<Fp8State>()) {
    const auto count = static_cast<std::int64_t>(formats.size());
    expect_tensor("make_scales", "states", states, DType::f32, {count, QuantisationOps::kStateSize});
    DDP_CHECK(!cuda::is_capturing(stream()), "scales cannot be made while a graph is captured");
    std::vector<Fp8State> initial;
    for (const DType format : formats) {
      DDP_CHECK(is_fp8(format), "{} is not FP8", name_of(format));
      scales_.push_back({states_ + initial.size(), format});
      initial.push_back({.limit = cuda::largest_of(format)});
    }
    device.copy_to_device(states_, initial.data(), states.bytes());
  }

  Fp8Scale* at(std::size_t i) override { return &scales_.at(i); }
  void renew() override { cuda::renew(states_, scales_.size(), stream()); }
  void forget_magnitudes() override { cuda::forget_largest(states_, scales_.size(), stream()); }
  void restored() override {
    std::vector<Fp8State> states(scales_.size());
    device_.copy_to_host(states.data(), states_, states.size() * sizeof(Fp8State));
    for (std::size_t i = 0; i < scales_.size(); ++i) scales_[i].used = states[i].used != 0;
  }

 private:
  Fp8State* states_;
  std::vector<Fp8Scale> scales_;
};

class CudaQuantisation final : public QuantisationOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  bool fits(std::int64_t rows, std::int64_t columns) const override {
    return device_.options().fp8 && rows % 16 == 0 && columns % 16 == 0;
  }

  std::unique_ptr<Fp8Scales> make_scales(const std::vector<DType>& formats, const Tensor& states) override {
    DDP_CHECK(device_.options().fp8, "scales of FP8 on a device without FP8");
    return std::make_unique<CudaFp8Scales>(device_, formats, states);
  }

  void to_fp8(const Tensor& x, const Tensor& y, const Tensor& sums, bool accumulate) override {
    expect_tensor("to_fp8", "x", x, dtype(), y.shape);
    expect_tensor("to_fp8", "y", y, y.dtype, y.shape);
    const cuda::Fp8Matrix to = cuda::fp8_output(y, stream());
    if (sums) expect_gradient("to_fp8", "sums", sums, dtype(), {to.columns});
    float* partials =
        sums ? scratch().reserve_elements<float>(cuda::fp8_partials(to.rows, to.columns), stream()) : nullptr;
    cuda::quantize(x.data, to, {sums, accumulate, partials}, stream());
  }
};

}  // namespace

std::unique_ptr<QuantisationOps> QuantisationOps::on_cuda(Device& device) {
  return std::make_unique<CudaQuantisation>(device);
}

}  // namespace ddptrain
