#include "models/cnn/cnn.h"
#include "models/image_workload.h"
#include "runtime/core/flags.h"

namespace ddptrain {
namespace {

class CnnWorkload final : public ImageWorkload {
 public:
  void add_flags(CLI::App& app) override {
    ImageWorkload::add_flags(app);
    const Names<bool> names = {{"on", true}, {"off", false}, {"auto", true}};
    add_choice(app, "--dropout", dropout_, names, "0.25 and 0.5, as published");
  }

  std::unique_ptr<Model> make_model(Device& device) override {
    return make_cnn(device, {run().batch, run().seed, dropout_}, make_resident(images(), device));
  }

 private:
  bool dropout_ = true;
};

}  // namespace

std::unique_ptr<Workload> make_cnn_workload() { return std::make_unique<CnnWorkload>(); }

}  // namespace ddptrain
