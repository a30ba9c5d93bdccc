#include "models/image_workload.h"
#include "models/mlp/mlp.h"
#include "runtime/core/flags.h"

namespace ddptrain {
namespace {

class MlpWorkload final : public ImageWorkload {
 public:
  void add_flags(CLI::App& app) override {
    ImageWorkload::add_flags(app);
    app.add_option("--hidden", shape_.hidden, "Width of each of the two hidden layers");
  }
  void check_flags() const override {
    require(shape_.hidden > 0 && shape_.hidden <= 65536, "--hidden", shape_.hidden, "1 to 65536");
  }

  std::unique_ptr<Model> make_model(Device& device) override {
    return make_mlp(device, run().batch, make_resident(images(), device), shape_);
  }
  std::map<std::string, std::int64_t> sizes() const override { return {{"hidden", shape_.hidden}}; }

 private:
  MlpShape shape_;
};

}  // namespace

std::unique_ptr<Workload> make_mlp_workload() { return std::make_unique<MlpWorkload>(); }

}  // namespace ddptrain
