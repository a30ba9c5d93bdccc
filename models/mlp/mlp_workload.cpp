#include <optional>

#include "models/image_workload.h"
#include "models/mlp/mlp.h"

namespace ddptrain {
namespace {

using Sizes = std::map<std::string, std::int64_t>;

class MlpWorkload final : public ImageWorkload {
 public:
  Flags flags() override {
    Flags flags = ImageWorkload::flags();
    flags.push_back({"--hidden", number(hidden_, {"1 to 65536", 1, 65536}), "Width of each of the two hidden layers"});
    return flags;
  }

  void note_given(const Flags& flags) override {
    for (const Flag& flag : flags) {
      if (flag.name() == "hidden" && (flag.given || hidden_ != MlpShape{}.hidden)) given_hidden_ = hidden_;
    }
  }
  void take_sizes(const Sizes& sizes) override { hidden_ = sizes.at("hidden"); }
  void check_given_sizes() override {
    if (given_hidden_.value_or(hidden_) == hidden_) return;
    usage_error("--hidden {}: the model of the checkpoint has {}. Leave --hidden out: the model decides it.",
                *given_hidden_, hidden_);
  }

  std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) override {
    return make_mlp(device, batch, make_resident(images(), device), shape_of(sizes()), pretrained());
  }
  Sizes sizes() const override {
    Sizes sizes = ImageWorkload::sizes();
    sizes["hidden"] = hidden_;
    return sizes;
  }

 protected:
  std::vector<ParameterSpec> parameters(const Sizes& sizes) const override { return mlp_parameters(shape_of(sizes)); }

 private:
  static MlpShape shape_of(const Sizes& sizes) {
    return {sizes.at("height"), sizes.at("width"), sizes.at("hidden"), sizes.at("classes")};
  }

  std::int64_t hidden_ = MlpShape{}.hidden;
  std::optional<std::int64_t> given_hidden_;
};

}  // namespace

std::unique_ptr<Workload> make_mlp_workload() { return std::make_unique<MlpWorkload>(); }

}  // namespace ddptrain
