#include <utility>

#include "models/cnn/cnn.h"
#include "models/cnn/pytorch_layout.h"
#include "models/image_workload.h"

namespace ddptrain {
namespace {

using Sizes = std::map<std::string, std::int64_t>;

constexpr std::int64_t kSmallestSide = 6;  // two convolutions and a pool leave one pixel

/// Checkpoints of 28x28 images that know no sizes are from before there were others.
CnnShape shape_of(const Sizes& sizes) {
  CnnShape shape;
  if (sizes.empty()) return shape;
  shape.height = sizes.at("height");
  shape.width = sizes.at("width");
  shape.classes = sizes.at("classes");
  return shape;
}

class CnnWorkload final : public ImageWorkload {
 public:
  Flags flags() override {
    Flags flags = ImageWorkload::flags();
    flags.push_back({"--dropout", choice(dropout_, {{"on", true}, {"off", false}, {"auto", true}}),
                     "Dropout with the published rates 0.25 and 0.5"});
    const Names<MemoryFormat> formats = {
        {"auto", MemoryFormat::automatic}, {"nhwc", MemoryFormat::nhwc}, {"nchw", MemoryFormat::nchw}};
    flags.push_back({"--memory-format", choice(memory_format_, formats),
                     "Layout in which cuDNN's convolutions compute, with --fused off; nchw: with copies around each. "
                     "auto: nhwc, or nchw if cuDNN has no other algorithm. CPUs have nhwc",
                     Effect::speed});
    return flags;
  }

  std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) override {
    return make_cnn(device, {batch, run().seed, dropout_, memory_format_, pretrained()},
                    make_resident(images(), device), shape_of(sizes()));
  }

 protected:
  std::vector<ParameterSpec> parameters(const Sizes& sizes) const override { return cnn_parameters(shape_of(sizes)); }
  void check_sizes() const override {
    const ImageDataset& data = images().train;
    if (data.height >= kSmallestSide && data.width >= kSmallestSide) return;
    usage_error("images of {}x{}: model cnn needs {}x{} pixels or more", data.height, data.width, kSmallestSide,
                kSmallestSide);
  }
  HostTensor for_file(const Sizes& sizes, const std::string& name, HostTensor tensor) const override {
    return to_pytorch(shape_of(sizes), name, std::move(tensor));
  }
  std::vector<float> from_file(const std::string& name, std::vector<float> values) const override {
    return from_pytorch(shape_of(sizes()), name, std::move(values));
  }

 private:
  bool dropout_ = true;
  MemoryFormat memory_format_ = MemoryFormat::automatic;
};

}  // namespace

std::unique_ptr<Workload> make_cnn_workload() { return std::make_unique<CnnWorkload>(); }

}  // namespace ddptrain
