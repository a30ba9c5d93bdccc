#include "runtime/ops/quantisation.h"

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/gemm/fp8.h"
#include "runtime/ops/cuda/gemm/fp8_scales.h"

namespace ddptrain {

namespace cuda {

Fp8Matrix fp8_matrix(const Tensor& tensor) {
  DDP_CHECK(tensor.scale != nullptr && tensor.scale->format == tensor.dtype, "a tensor of {} without a scale of it",
            name_of(tensor.dtype));
  const std::int64_t columns = tensor.shape.back(), rows = tensor.size() / columns;
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
  if (to.first_use) note_use(*y.scale, stream);
  return to;
}

}  // namespace cuda

namespace {

class CudaQuantisation final : public QuantisationOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  bool fits(std::int64_t rows, std::int64_t columns) const override {
    return device_.options().fp8 && rows % 16 == 0 && columns % 16 == 0;
  }

  std::unique_ptr<Fp8Scales> make_scales(const std::vector<DType>& formats, const Tensor& states) override {
    DDP_CHECK(device_.options().fp8, "scales of FP8 on a device without FP8");
    return cuda::make_fp8_scales(device_, formats, states);
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
