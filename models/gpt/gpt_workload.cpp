#include <filesystem>
#include <optional>
#include <utility>

#include "data/text/tokens.h"
#include "models/gpt/gpt.h"
#include "models/gpt/gpt2_folder.h"
#include "models/workload.h"

namespace ddptrain {
namespace {

const GptShapeNames kFlags = {"", "--layers", "--width", "--heads", "--ff", "--seq", "--vocab"};
constexpr std::int64_t kVocabularyOfData = 0;

class GptWorkload final : public Workload {
 public:
  GptWorkload() { shape_.vocabulary = kVocabularyOfData; }

  Flags flags() override {
    const Names<Recompute> recomputes = {
        {"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
    return {
        {"--layers", number(shape_.layers), "Transformer blocks"},
        {"--width", number(shape_.width), "Size of a token's activation"},
        {"--heads", number(shape_.heads), "Attention heads; their number divides --width"},
        {"--ff", number(shape_.feed_forward), "Width of the feed-forward layers"},
        {"--seq", number(shape_.sequence), "Tokens per sample"},
        {"--vocab", number(shape_.vocabulary), "Vocabulary size (0: 256 for text, 50257 for token files)"},
        {"--dropout",
         {"on|off|RATE", "auto", [this](const std::string& text) { return set_dropout(text); }},
         "Dropout rate; on: 0.1; auto: off"},
        {"--data", text(data_, "PATH"),
         "Text file, token files (.bin), a folder or pattern of them, or synthetic[:COUNT[:VOCAB]]"},
        {"--val-fraction", number(val_fraction_, {"above 0 and below 1", kLeastAboveZero, kMostBelowOne}),
         "Fraction at the end of the text for validation, without val shards"},
        {"--init", text(init_, "PATH"),
         "Start from a Hugging Face GPT-2: model folder or safetensors file; it decides the shape"},
        {"--recompute", choice(recompute_, recomputes),
         "Activations that backward recomputes instead of keeping them in memory", Effect::speed},
        {"--save", text(save_, "DIR"),
         "Write the trained model to this folder: model.safetensors and config.json of transformers", Effect::output}};
  }
  void check_flags() const override {
    GptShape shape = shape_;
    if (shape.vocabulary == kVocabularyOfData) shape.vocabulary = 1;
    check_shape(shape, kFlags);
  }
  bool supports_fp8() const override { return true; }
  bool supports_f32_gradients() const override { return true; }
  bool supports_stages() const override { return true; }

  void open(const RunFacts& run) override {
    run_ = run;
    if (data_.empty())
      usage_error("--model gpt needs --data: a text file, token files (.bin) or their folder, or synthetic");
    if (!init_.empty()) read_init();
    if (run.mesh.stages > shape_.layers) {
      usage_error("--pp {}: the model has {}, and a stage has one at least. Give --pp {}{}.", run.mesh.stages,
                  counted(shape_.layers, "block"), shape_.layers, shape_.layers == 1 ? "" : " or less");
    }
  }
  void load() override {
    TokenOptions options;
    options.vocabulary = shape_.vocabulary;
    options.validation_fraction = val_fraction_;
    options.seed = run_.seed;
    options.reader = run_.local_rank;
    options.readers = run_.local_size;
    about("--data", [&] {
      tokens_.emplace(load_tokens(data_, options), shape_.sequence);
      if (pretrained_ != nullptr) check_bytes();
    });
    if (shape_.vocabulary == kVocabularyOfData) shape_.vocabulary = tokens_->text().vocabulary;
    check_parts(shape_, run_.mesh.tensor, kFlags);
  }
  const Dataset& data() const override { return tokens_.value(); }

  std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) override {
    const MeshShape& mesh = run_.mesh;
    if (dropout_ > 0.0f && batch % mesh.tensor != 0 && mesh.tensor % batch != 0) {
      usage_error("--dropout with --tp {0}: give a --batch that it divides, such as {0}, or --dropout 0.", mesh.tensor);
    }
    GptOptions options;
    options.shape = shape_;
    options.stage = gpt_stage(shape_, mesh.stages, mesh.stage_of(run_.rank));
    options.part = {mesh.tensor, mesh.part_of(run_.rank)};
    options.max_batch = batch;
    options.seed = run_.seed;
    options.dropout = dropout_;
    options.recompute = recompute_;
    if (pretrained_ != nullptr) {
      options.pretrained = [weights = pretrained_](const std::string& name) { return weights->read(name); };
    }
    return make_gpt(device, options, about("--data", [&] { return make_resident(*tokens_, device); }));
  }
  std::vector<std::string> memory_flags() const override {
    std::vector<std::string> flags;
    if (recompute_ < Recompute::gelu) flags.emplace_back("--recompute gelu");
    if (recompute_ < Recompute::block) flags.emplace_back("--recompute block");
    return flags;
  }
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
  /// With norm_epsilon, which is not among the sizes().
  void save(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const override {
    save_gpt2(folder, {shape_, std::move(weights)});
  }
  void read_init() {
    about("--init", [&] {
      pretrained_ = std::make_shared<Gpt2Folder>(init_);
      if (run_.rank == 0) pretrained_->check_values();
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
  /// The bytes of a text are no tokens of a tokenizer, which the model has if its folder has one, or if it is GPT-2.
  void check_bytes() const {
    const TokenData& text = tokens_->text();
    const auto has = [&](const char* name) { return std::filesystem::exists(std::filesystem::path(init_) / name); };
    const bool has_tokenizer = shape_.vocabulary == GptShape{}.vocabulary || has("vocab.json") || has("tokenizer.json");
    if (text.train.token_bytes > 1 || text.entropy || shape_.vocabulary <= 256 || !has_tokenizer) return;
    usage_error(
        "{}: the bytes of a text are its tokens, and the model of --init {} has other ones. "
        "`data/tokens-from-text TEXT OUT.bin --tokenizer FOLDER` writes tokens of its tokenizer.",
        data_, init_);
  }
  /// Returns as FlagValue::set.
  std::string set_dropout(const std::string& text) {
    dropout_ = text == "on" ? 0.1f : 0.0f;
    if (text == "on" || text == "off" || text == "auto") return {};
    std::string rate = text;
    const std::string advice = number(dropout_, kBelowOne).set(rate);
    return advice.empty() ? "" : "on, off, or a rate of at least 0 and below 1";
  }

  GptShape shape_;
  Recompute recompute_ = Recompute::none;
  float dropout_ = 0.0f;
  std::string data_;
  double val_fraction_ = 0.1;

  RunFacts run_;
  std::shared_ptr<const Gpt2Folder> pretrained_;  ///< Null: none.
  std::optional<TokenDataset> tokens_;
};

}  // namespace

std::unique_ptr<Workload> make_gpt_workload() { return std::make_unique<GptWorkload>(); }

}  // namespace ddptrain
