#include "runtime/ops/gather.h"

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

class CpuGather final : public GatherOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void gather_images(const ImageBatch& batch, const Tensor& out) override {
    const Tensor& images = batch.images;
    const std::int64_t pixels = check_gather_images(batch, out, dtype()).columns;
    with_scalar([&]<class T>(T) {
      parallel_each(batch.count, 64, [&](std::int64_t row, int) {
        const std::uint32_t sample = sample_index(batch.order, batch.step.value(), static_cast<std::uint32_t>(row));
        const std::uint8_t* from = images.as<std::uint8_t>() + sample * pixels;
        T* to = out.as<T>() + row * pixels;
        for (std::int64_t i = 0; i < pixels; ++i) to[i] = static_cast<T>(from[i]) / T{255};
      });
    });
  }
};

}  // namespace

std::unique_ptr<GatherOps> GatherOps::on_cpu(Device& device) { return std::make_unique<CpuGather>(device); }

}  // namespace ddptrain
