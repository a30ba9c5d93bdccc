#include <cmath>
#include <filesystem>
#include <utility>

#include "models/decoder/decoder_workload.h"
#include "models/gpt2/gpt2.h"
#include "models/gpt2/gpt2_folder.h"

namespace ddptrain {
namespace {

const SizeNames kFlags = {"", "--layers", "--width", "--heads", "--ff", "--seq", "--vocab"};

class Gpt2Workload final : public DecoderWorkload {
 public:
  Gpt2Workload() : DecoderWorkload("gpt") { shape_.vocabulary = kVocabularyOfData; }

  Flags flags() override {
    return with_common_flags({{"--layers", number(shape_.layers), "Transformer blocks"},
                              {"--width", number(shape_.width), "Size of a token's activation"},
                              {"--heads", number(shape_.heads), "Attention heads; their number divides --width"},
                              {"--ff", number(shape_.feed_forward), "Width of the feed-forward layers"},
                              {"--seq", number(shape_.sequence), "Tokens per sample"},
                              {"--vocab", number(shape_.vocabulary), kAboutVocabulary}},
                             "Start from a Hugging Face GPT-2: model folder or safetensors file; it decides the shape");
  }
  bool supports_fp8() const override { return true; }
  std::vector<std::string> model_types() const override { return {"gpt2"}; }

  std::map<std::string, std::int64_t> sizes() const override {
    std::map<std::string, std::int64_t> sizes = {{"layers", shape_.layers},     {"width", shape_.width},
                                                 {"heads", shape_.heads},       {"feed_forward", shape_.feed_forward},
                                                 {"sequence", shape_.sequence}, {"vocabulary", shape_.vocabulary}};
    if (shape_.norm_epsilon != Gpt2Shape{}.norm_epsilon) {
      sizes[kEpsilon] = std::llround(shape_.norm_epsilon * kEpsilonUnit);
    }
    return sizes;
  }
  void take_sizes(const std::map<std::string, std::int64_t>& sizes) override { shape_ = shape_of(sizes); }
  std::vector<std::uint32_t> end_tokens() const override {
    constexpr std::uint32_t kEndOfText = 50256;
    if (shape_.vocabulary != kEndOfText + 1) return {};
    return {kEndOfText};
  }
  void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>& sizes,
                      const std::map<std::string, HostTensor>& weights) const override {
    save_gpt2(folder, {shape_of(sizes), weights});
  }

 private:
  /// The size is left out if the epsilon is the usual one.
  static constexpr const char* kEpsilon = "norm_epsilon_e12";
  static constexpr double kEpsilonUnit = 1e12;

  static Gpt2Shape shape_of(const std::map<std::string, std::int64_t>& sizes) {
    Gpt2Shape shape = {sizes.at("layers"),       sizes.at("width"),    sizes.at("heads"),
                       sizes.at("feed_forward"), sizes.at("sequence"), sizes.at("vocabulary")};
    const auto epsilon = sizes.find(kEpsilon);
    if (epsilon != sizes.end()) shape.norm_epsilon = static_cast<double>(epsilon->second) / kEpsilonUnit;
    return shape;
  }
  DecoderTable table() const override { return gpt2_table(shape_); }
  std::int64_t& vocabulary() override { return shape_.vocabulary; }
  const SizeNames& size_flags() const override { return kFlags; }

  void save_model(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const override {
    save_gpt2(folder, {shape_, std::move(weights)});
  }
  void open_init(const RunFacts& run) override {
    pretrained_ = open_folder<Gpt2Folder>(run);
    const std::int64_t window = window_within(pretrained_->shape().sequence, shape_.sequence, run);
    shape_ = pretrained_->shape();
    shape_.sequence = window;
  }
  std::function<std::vector<float>(const std::string& name)> pretrained() const override {
    if (pretrained_ == nullptr) return nullptr;
    return [weights = pretrained_](const std::string& name) { return weights->read(name); };
  }

  Gpt2Shape shape_;
  std::shared_ptr<const Gpt2Folder> pretrained_;  ///< Null: none.
};

}  // namespace

std::unique_ptr<Workload> make_gpt_workload() { return std::make_unique<Gpt2Workload>(); }

}  // namespace ddptrain
