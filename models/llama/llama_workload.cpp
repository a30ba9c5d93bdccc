#include <charconv>
#include <filesystem>
#include <utility>

#include "models/decoder/decoder_workload.h"
#include "models/llama/llama.h"
#include "models/llama/llama_folder.h"

namespace ddptrain {
namespace {

const SizeNames kFlags = {"",      "--layers", "--width",     "--heads",    "--ff",
                          "--seq", "--vocab",  "--key-heads", "--head-size"};
constexpr Range kEpsilons = {"a number from 10^-12 to 0.1", 1e-12, 0.1};
constexpr Range kRopeBases = {"a number from 1 to 10^12", 1, 1e12};

/// As the flag takes it.
std::string text_of(const RotaryScaling& scaling) {
  if (scaling.factor == RotaryScaling{}.factor) return "off";
  return fmt::format("{}:{}:{}:{}", scaling.factor, scaling.low_frequency_factor, scaling.high_frequency_factor,
                     scaling.original_positions);
}

/// Returns as FlagValue::set.
std::string set_scaling(std::string& text, RotaryScaling& scaling) {
  scaling = {};
  if (text == "off") return {};
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto take = [&](auto& number) {
    const auto [rest, error] = std::from_chars(at, end, number);
    at = rest;
    return error == std::errc{} && number >= 1 && number <= 1'000'000;
  };
  const auto colon = [&] { return at < end && *at++ == ':'; };
  const bool read = take(scaling.factor) && colon() && take(scaling.low_frequency_factor) && colon() &&
                    take(scaling.high_frequency_factor) && colon() && take(scaling.original_positions) && at == end;
  if (read && scaling.high_frequency_factor > scaling.low_frequency_factor) {
    text = text_of(scaling);
    return {};
  }
  return "off, or four numbers from 1 to 10^6, such as 32:1:4:8192: the factor, the frequency factors low and high, "
         "and the positions of the first training";
}

class LlamaWorkload final : public DecoderWorkload {
 public:
  LlamaWorkload() : DecoderWorkload("llama") { shape_.vocabulary = kVocabularyOfData; }

  Flags flags() override {
    Flags sizes = {{"--layers", number(shape_.layers), "Transformer blocks"},
                   {"--width", number(shape_.width), "Size of a token's activation"},
                   {"--heads", number(shape_.heads), "Heads of queries"},
                   {"--key-heads", number(shape_.key_heads, {"0 or more", 0}),
                    "Heads of keys and values; their number divides --heads (0: as many as --heads)"},
                   {"--head-size", number(shape_.head_size, {"0 or more", 0}), "Size of a head (0: --width / --heads)"},
                   {"--ff", number(shape_.feed_forward), "Width of the feed-forward layers"},
                   {"--seq", number(shape_.sequence), "Tokens per sample"},
                   {"--vocab", number(shape_.vocabulary), kAboutVocabulary},
                   {"--norm-epsilon", number(shape_.norm_epsilon, kEpsilons), "Epsilon of the RMS norms"},
                   {"--rope-base", number(shape_.rotary_base, kRopeBases), "Base of the rotary positions"},
                   {"--rope-scaling",
                    {"off|FACTOR:LOW:HIGH:POSITIONS", text_of(shape_.rotary_scaling),
                     [this](std::string& text) { return set_scaling(text, shape_.rotary_scaling); }},
                    "Llama 3's scaling of the rotary positions to longer texts"},
                   {"--qkv-bias", on_off(shape_.qkv_bias), "Biases of queries, keys and values (Qwen2)"},
                   {"--head-norms", on_off(shape_.head_norms), "RMS norms of queries and keys (Qwen3)"},
                   {"--tied-head", on_off(shape_.tied_head), "The output layer has the weight of the token embedding"}};
    return with_common_flags(
        std::move(sizes),
        "Start from a Hugging Face model of Llama, Qwen2 or Qwen3: model folder or safetensors file; it "
        "decides the shape");
  }
  void check_flags() const override {
    DecoderWorkload::check_flags();
    if (shape_.qkv_bias && shape_.head_norms) {
      usage_error("--qkv-bias on with --head-norms on: no model of transformers has both. Leave one of them out.");
    }
  }

  bool supports_fp8() const override { return true; }
  std::vector<std::string> model_types() const override { return {"llama", "qwen2", "qwen3"}; }

  std::map<std::string, std::int64_t> sizes() const override { return shape_.sizes(); }
  void take_sizes(const std::map<std::string, std::int64_t>& sizes) override { shape_ = LlamaShape::of_sizes(sizes); }
  SpecialTokens special_tokens() const override { return special_; }
  void take_special_tokens(const SpecialTokens& tokens) override { special_ = tokens; }
  void export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>& sizes,
                      const std::map<std::string, HostTensor>& weights) const override {
    save_llama(folder, {LlamaShape::of_sizes(sizes), special_, weights});
  }

 private:
  DecoderTable table() const override { return llama_table(shape_); }
  std::int64_t& vocabulary() override { return shape_.vocabulary; }
  const SizeNames& size_flags() const override { return kFlags; }
  std::int64_t most_positions() const override { return shape_.most_positions(); }

  void save_model(const std::filesystem::path& folder, std::map<std::string, HostTensor> weights) const override {
    save_llama(folder, {shape_, special_, std::move(weights)});
  }
  void open_init(const RunFacts& run) override {
    pretrained_ = open_folder<LlamaFolder>(run);
    const std::int64_t window = window_within(pretrained_->shape().most_positions(), shape_.sequence, run);
    shape_ = pretrained_->shape();
    shape_.sequence = window;
    special_ = pretrained_->tokens();
  }
  std::function<std::vector<float>(const std::string& name)> pretrained() const override {
    if (pretrained_ == nullptr) return nullptr;
    return [weights = pretrained_](const std::string& name) { return weights->read(name); };
  }

  LlamaShape shape_;
  SpecialTokens special_;
  std::shared_ptr<const LlamaFolder> pretrained_;  ///< Null: none.
};

}  // namespace

std::unique_ptr<Workload> make_llama_workload() { return std::make_unique<LlamaWorkload>(); }

}  // namespace ddptrain
