#include "models/cnn/cnn_kernels.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

/// What the fused kernels keep of an image between their parts: features and their gradient in bf16, the places of the
/// largest elements in 4 bits, the hidden layer in f32 and its gradient in bf16.
std::size_t bytes_per_image(const CnnShape& shape) {
  const auto features = static_cast<std::size_t>(shape.features());
  const auto hidden = static_cast<std::size_t>(shape.hidden);
  return 2 * 2 * features + features / 2 + (4 + 2) * hidden;
}

class PaperCnnKernels final : public CnnKernels {
 public:
  explicit PaperCnnKernels(std::size_t bytes) : bytes_(bytes) {}

  std::size_t memory_bytes() const override { return bytes_; }
  void forward(const ImageBatch&, const CnnTensors&, const Dropout&, const Dropout&, float, MetricSums*) override {
    refuse();
  }
  void backward_hidden(const CnnTensors&, const CnnTensors&, bool) override { refuse(); }
  void backward_rest(const CnnTensors&, const CnnTensors&, bool) override { refuse(); }

 private:
  [[noreturn]] static void refuse() { fail("this device computes nothing"); }

  std::size_t bytes_;
};

}  // namespace

std::unique_ptr<CnnKernels> make_paper_cnn_kernels(Device& device, const CnnShape& shape, std::int64_t max_batch) {
  const bool stands_for_gpu = device.kind() == DeviceKind::cpu && device.has_own_memory();
  if (!stands_for_gpu || !has_fused_kernels(shape, device.precision())) return nullptr;
  return std::make_unique<PaperCnnKernels>(static_cast<std::size_t>(max_batch) * bytes_per_image(shape));
}

}  // namespace ddptrain
