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
    Flags flags = {{"--layers", number(shape_.layers), "Transformer blocks"},
                   {"--width", number(shape_.width), "Size of a token's activation"},
                   {"--heads", number(shape_.heads), "Attention heads; their number divides --width"},
                   {"--ff", number(shape_.feed_forward), "Width of the feed-forward layers"},
                   {"--seq", number(shape_.sequence), "Tokens per sample"},
                   {"--vocab", number(shape_.vocabulary), "Vocabulary size (0: 256 for text, 50257 for token files)"}};
    for (Flag& flag :
         common_flags("Start from a Hugging Face GPT-2: model folder or safetensors file; it decides the shape",
                      "Write the trained model to this folder: model.safetensors and config.json of transformers")) {
      flags.push_back(std::move(flag));
    }
    return flags;
  }
  void check_flags() const override {
    Gpt2Shape shape = shape_;
    if (shape.vocabulary == kVocabularyOfData) shape.vocabulary = 1;
    check_config(gpt2_table(shape).config, kFlags);
  }
  bool supports_fp8() const override { return true; }

  std::map<std::string, std::int64_t> sizes() const override {
    return {{"layers", shape_.layers},     {"width", shape_.width},
            {"heads", shape_.heads},       {"feed_forward", shape_.feed_forward},
            {"sequence", shape_.sequence}, {"vocabulary", shape_.vocabulary}};
  }
  void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>& sizes,
                      const std::map<std::string, HostTensor>& weights) const override {
    save_gpt2(folder, {{sizes.at("layers"), sizes.at("width"), sizes.at("heads"), sizes.at("feed_forward"),
                        sizes.at("sequence"), sizes.at("vocabulary")},
                       weights});
  }

 private:
  DecoderTable table() const override { return gpt2_table(shape_); }
  std::int64_t& vocabulary() override { return shape_.vocabulary; }
  const SizeNames& size_flags() const override { return kFlags; }

  /// With norm_epsilon, which is not among the sizes().
  void save(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const override {
    save_gpt2(folder, {shape_, std::move(weights)});
  }
  void open_init(const RunFacts& run) override {
    about("--init", [&] {
      pretrained_ = std::make_shared<Gpt2Folder>(init_);
      if (run.rank == 0) pretrained_->check_values();
    });
    const std::int64_t positions = pretrained_->shape().sequence;
    if (shape_.sequence > positions) {
      usage_error("--seq {}: {} has {} positions. Give --seq {} or less.", shape_.sequence, init_, positions,
                  positions);
    }
    const std::int64_t sequence = shape_.sequence;
    shape_ = pretrained_->shape();
    shape_.sequence = sequence;
  }
  std::function<std::vector<float>(const std::string& name)> pretrained() const override {
    if (pretrained_ == nullptr) return nullptr;
    return [weights = pretrained_](const std::string& name) { return weights->read(name); };
  }
  /// The bytes of a text are no tokens of a tokenizer, which the model has if its folder has one, or if it is GPT-2.
  void check_tokens(const TokenData& text, const std::string& data) const override {
    const auto has = [&](const char* name) { return std::filesystem::exists(std::filesystem::path(init_) / name); };
    const bool has_tokenizer =
        shape_.vocabulary == Gpt2Shape{}.vocabulary || has("vocab.json") || has("tokenizer.json");
    if (text.train.token_bytes > 1 || text.entropy || shape_.vocabulary <= 256 || !has_tokenizer) return;
    usage_error(
        "{}: the bytes of a text are its tokens, and the model of --init {} has other ones. "
        "`data/tokens-from-text TEXT OUT.bin --tokenizer FOLDER` writes tokens of its tokenizer.",
        data, init_);
  }

  Gpt2Shape shape_;
  std::shared_ptr<const Gpt2Folder> pretrained_;  ///< Null: none.
};

}  // namespace

std::unique_ptr<Workload> make_gpt_workload() { return std::make_unique<Gpt2Workload>(); }

}  // namespace ddptrain
