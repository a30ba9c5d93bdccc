#include <algorithm>
#include <filesystem>
#include <optional>

#include "data/text/bpe_tokenizer.h"
#include "data/text/tokens.h"
#include "models/gpt/generate.h"
#include "models/gpt/gpt.h"
#include "models/gpt/gpt2_folder.h"
#include "models/gpt/text.h"
#include "models/language_model.h"
#include "models/workload.h"
#include "runtime/core/files/writable.h"

namespace ddptrain {
namespace {

const GptShapeNames kFlags = {"", "--layers", "--width", "--heads", "--ff", "--seq", "--vocab"};
constexpr std::int64_t kVocabularyOfData = 0;

/// What --init names.
struct Pretrained {
  Gpt2Folder weights;
  std::optional<BpeTokenizer> tokenizer;

  explicit Pretrained(const std::filesystem::path& path) : weights(path) {
    if (std::filesystem::exists(path / "vocab.json")) tokenizer.emplace(path);
  }
};

/// So that what was saved is a model folder like the one that training began with.
void copy_tokenizer(const std::filesystem::path& from, const std::filesystem::path& to) {
  std::error_code ignored;
  if (std::filesystem::equivalent(from, to, ignored)) return;
  for (const char* name : {"vocab.json", "merges.txt"}) {
    std::error_code error;
    std::filesystem::copy_file(from / name, to / name, std::filesystem::copy_options::overwrite_existing, error);
    if (error) usage_error("--save {}: {} cannot be copied there: {}", to.string(), name, error.message());
  }
}

class GptWorkload final : public Workload {
 public:
  GptWorkload() { shape_.vocabulary = kVocabularyOfData; }

  Flags flags() override;
  void check_flags() const override;
  bool supports_fp8() const override { return true; }
  bool supports_f32_gradients() const override { return true; }
  bool supports_stages() const override { return true; }
  bool writes_text() const override { return true; }
  bool saves() const override { return !save_.empty(); }
  bool starts_from_weights() const override { return !init_.empty(); }

  void open(const RunFacts& run) override;
  void load() override;
  const Dataset& data() const override { return tokens_.value(); }
  void check_outputs() const override {
    if (!save_.empty()) require_writable_folder("--save", save_);
  }

  std::unique_ptr<Model> make_model(Device& device, std::int64_t batch) override;
  std::vector<std::string> memory_flags() const override;
  std::map<std::string, std::int64_t> sizes() const override {
    return {{"layers", shape_.layers},     {"width", shape_.width},
            {"heads", shape_.heads},       {"feed_forward", shape_.feed_forward},
            {"sequence", shape_.sequence}, {"vocabulary", shape_.vocabulary}};
  }
  bool samples_during_training() const override { return sample_every_ > 0; }
  Samples samples(Model& model, Device& device) override;
  void generate(Model& model, Device& device, const std::function<void(const std::string&)>& show) override;
  void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>& sizes,
                      const std::map<std::string, HostTensor>& weights) const override {
    save_gpt2(folder, {{sizes.at("layers"), sizes.at("width"), sizes.at("heads"), sizes.at("feed_forward"),
                        sizes.at("sequence"), sizes.at("vocabulary")},
                       weights});
  }
  void finish(const TrainingState& state, const World& world) override;

 private:
  void read_init();
  std::vector<std::uint16_t> prompt_tokens() const;
  std::string write(Model& model, Device& device, std::uint32_t sample, std::int64_t context) const;
  std::string set_dropout(const std::string& text);
  const BpeTokenizer* tokenizer() const {
    return pretrained_ != nullptr && pretrained_->tokenizer ? &*pretrained_->tokenizer : nullptr;
  }

  GptShape shape_;
  Recompute recompute_ = Recompute::none;
  float dropout_ = 0.0f;
  std::string data_;
  double val_fraction_ = 0.1;
  std::string init_;
  std::string save_;
  std::int64_t sample_every_ = 0;
  std::string prompt_ = "The";
  std::int64_t sample_tokens_ = 200;
  float temperature_ = 0.8f;
  std::int64_t top_k_ = 0;
  std::int64_t samples_ = 1;

  RunFacts run_;
  std::shared_ptr<const Pretrained> pretrained_;  ///< Null: none.
  std::optional<TokenDataset> tokens_;
};

Flags GptWorkload::flags() {
  const Names<Recompute> recomputes = {
      {"none", Recompute::none}, {"gelu", Recompute::gelu}, {"block", Recompute::block}};
  return {
      {"--layers", number(shape_.layers), "Transformer blocks"},
      {"--width", number(shape_.width), "Size of a token's activation"},
      {"--heads", number(shape_.heads), "Attention heads; their number divides --width"},
      {"--ff", number(shape_.feed_forward), "Width of the feed-forward layers"},
      {"--seq", number(shape_.sequence), "Tokens per sample"},
      {"--vocab", number(shape_.vocabulary), "Vocabulary size (0: 256 for text, 50257 for token files)"},
      {"--dropout", parsed("on|off|RATE", "auto", [this](const std::string& text) { return set_dropout(text); }),
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
       "Write the trained model to this folder: model.safetensors and config.json of transformers", Effect::output},
      {"--sample-every", number(sample_every_, kZeroOrMore), "Steps between text samples of the model (0: none)",
       Effect::output},
      {"--prompt", text(prompt_), "Start of each text sample", Effect::output},
      {"--sample-tokens", number(sample_tokens_, {"1 to 1048576", 1, 1 << 20}), "Tokens per text sample",
       Effect::output},
      {"--temperature", number(temperature_, kZeroOrMore), "Sampling temperature (0: always the likeliest token)",
       Effect::output},
      {"--top-k", number(top_k_, kZeroOrMore), "Sample from this many of the likeliest tokens (0: from all)",
       Effect::output},
      {"--samples", number(samples_, {"1 to 1000000", 1, 1e6}), "Text samples that --generate writes", Effect::output}};
}

/// Returns as FlagValue::set.
std::string GptWorkload::set_dropout(const std::string& text) {
  dropout_ = text == "on" ? 0.1f : 0.0f;
  if (text == "on" || text == "off" || text == "auto") return {};
  std::string rate = text;
  const std::string advice = number(dropout_, kBelowOne).set(rate);
  return advice.empty() ? "" : "on, off, or a rate of at least 0 and below 1";
}

void GptWorkload::check_flags() const {
  GptShape shape = shape_;
  if (shape.vocabulary == kVocabularyOfData) shape.vocabulary = 1;
  check_shape(shape, kFlags);
  if (prompt_.empty()) usage_error("--prompt '': give at least one character");
}

void GptWorkload::open(const RunFacts& run) {
  run_ = run;
  if (run.reads_data && data_.empty())
    usage_error("--model gpt needs --data: a text file, token files (.bin) or their folder, or synthetic");
  if (!init_.empty()) read_init();
  if (run.mesh.stages > shape_.layers) {
    usage_error("--pp {}: the model has {}, and a stage has one at least. Give --pp {}{}.", run.mesh.stages,
                counted(shape_.layers, "block"), shape_.layers, shape_.layers == 1 ? "" : " or less");
  }
}

void GptWorkload::read_init() {
  about("--init", [&] {
    pretrained_ = std::make_shared<Pretrained>(init_);
    if (run_.rank == 0) pretrained_->weights.check_values();
  });
  const std::int64_t positions = pretrained_->weights.shape().sequence;
  if (shape_.sequence > positions) {
    usage_error("--seq {}: {} has {} positions. Give --seq {} or less.", shape_.sequence, init_, positions, positions);
  }
  const std::int64_t sequence = shape_.sequence;
  shape_ = pretrained_->weights.shape();
  shape_.sequence = sequence;
}

void GptWorkload::load() {
  TokenOptions options;
  options.vocabulary = shape_.vocabulary;
  options.validation_fraction = val_fraction_;
  options.seed = run_.seed;
  options.reader = run_.local_rank;
  options.readers = run_.local_size;
  if (const BpeTokenizer* cuts = tokenizer()) {
    options.encode = [cuts](std::string_view text) { return cuts->encode(text); };
  }
  about("--data", [&] { tokens_.emplace(load_tokens(data_, options), shape_.sequence); });
  if (shape_.vocabulary == kVocabularyOfData) shape_.vocabulary = tokens_->text().vocabulary;
  check_parts(shape_, run_.mesh.tensor, kFlags);
}

std::unique_ptr<Model> GptWorkload::make_model(Device& device, std::int64_t batch) {
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
    options.pretrained = [weights = pretrained_](const std::string& name) { return weights->weights.read(name); };
  }
  if (!tokens_) return make_gpt(device, options, {});
  return make_gpt(device, options, about("--data", [&] { return make_resident(*tokens_, device); }));
}

std::vector<std::string> GptWorkload::memory_flags() const {
  std::vector<std::string> flags;
  if (recompute_ < Recompute::gelu) flags.emplace_back("--recompute gelu");
  if (recompute_ < Recompute::block) flags.emplace_back("--recompute block");
  return flags;
}

std::vector<std::uint16_t> GptWorkload::prompt_tokens() const {
  std::vector<std::uint16_t> tokens = to_tokens(prompt_, tokenizer());
  const auto unknown = std::find_if(tokens.begin(), tokens.end(), [&](int t) { return t >= shape_.vocabulary; });
  if (unknown == tokens.end()) return tokens;
  usage_error("--prompt: it has token {}, and the model knows {} different ones", *unknown, shape_.vocabulary);
}

std::string GptWorkload::write(Model& model, Device& device, std::uint32_t sample, std::int64_t context) const {
  const GenerateOptions options{sample_tokens_, temperature_, top_k_, context, run_.seed, sample};
  auto& writer = dynamic_cast<LanguageModel&>(model);
  return to_text(ddptrain::generate(writer, device, prompt_tokens(), options), tokenizer());
}

Samples GptWorkload::samples(Model& model, Device& device) {
  return {sample_every_, [this, &device, &model] { return write(model, device, 0, shape_.sequence); }};
}

/// A window that the text does not fill would be computed in vain.
void GptWorkload::generate(Model& model, Device& device, const std::function<void(const std::string&)>& show) {
  constexpr std::int64_t kPiece = 64;
  const auto prompt = static_cast<std::int64_t>(prompt_tokens().size());
  const std::int64_t longest = (prompt + sample_tokens_ + kPiece - 1) / kPiece * kPiece;
  for (std::int64_t sample = 0; sample < samples_; ++sample) {
    show(write(model, device, static_cast<std::uint32_t>(sample), std::min(longest, shape_.sequence)));
  }
}

void GptWorkload::finish(const TrainingState& state, const World& world) {
  if (save_.empty()) return;
  Gpt2Weights weights{shape_, {}};
  state.visit_parameters([&](const ParameterSpec& spec, const float* values) {
    if (world.rank() != 0) return;
    weights.tensors[spec.name] = {spec.shape, {values, values + spec.size()}};
  });
  world.agree([&] {
    if (world.rank() != 0) return;
    save_gpt2(save_, weights);
    if (tokenizer() != nullptr) copy_tokenizer(init_, save_);
  });
}

}  // namespace

std::unique_ptr<Workload> make_gpt_workload() { return std::make_unique<GptWorkload>(); }

}  // namespace ddptrain
