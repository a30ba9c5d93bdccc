#include "launch/pretrained.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain {

StartValues Pretrained::start_values() const {
  return [this](const ParameterSpec& spec) -> const float* {
    const auto found = weights.tensors.find(spec.name);
    if (found == weights.tensors.end()) fail("--init has no {}", spec.name);
    DDP_CHECK(static_cast<std::int64_t>(found->second.values.size()) >= spec.size(), "{} has {} values, not {}",
              spec.name, found->second.values.size(), spec.size());
    return found->second.values.data();
  };
}

std::shared_ptr<const Pretrained> load_pretrained(const Options& options) {
  if (options.init.empty()) return nullptr;
  auto pretrained = std::make_shared<Pretrained>();
  pretrained->weights = load_gpt2(options.init);
  const std::filesystem::path folder = options.init;
  if (std::filesystem::exists(folder / "vocab.json")) pretrained->tokenizer.emplace(folder);
  const std::int64_t positions = pretrained->weights.shape.positions;
  if (options.gpt.sequence > positions) {
    usage_error("--seq {}: {} has {} positions. Give --seq {} or less.", options.gpt.sequence, options.init, positions,
                positions);
  }
  return pretrained;
}

void adopt(const Gpt2Weights& weights, Options& options) {
  const Gpt2Shape& shape = weights.shape;
  options.gpt = {shape.layers,
                 shape.width,
                 shape.heads,
                 shape.feed_forward,
                 options.gpt.sequence,
                 shape.vocabulary,
                 static_cast<float>(shape.epsilon)};
}

void save_pretrained(const std::string& folder, const ParameterArena& arena, const GptShape& shape,
                     const World& world) {
  Gpt2Weights weights;
  weights.shape = {shape.layers,   shape.heads,      shape.width,       shape.feed_forward,
                   shape.sequence, shape.vocabulary, shape.norm_epsilon};
  arena.visit([&](const ParameterSpec& spec, const float* values) {
    if (world.rank() != 0) return;
    weights.tensors[spec.name] = {spec.shape, {values, values + spec.size()}};
  });
  world.agree([&] {
    if (world.rank() == 0) save_gpt2(folder, weights);
  });
}

std::vector<std::uint16_t> to_tokens(const std::string& text, const Pretrained* pretrained) {
  if (pretrained != nullptr && pretrained->tokenizer) return pretrained->tokenizer->encode(text);
  std::vector<std::uint16_t> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

std::string to_text(const std::vector<std::uint16_t>& tokens, const Pretrained* pretrained) {
  if (pretrained != nullptr && pretrained->tokenizer) return pretrained->tokenizer->decode(tokens);
  std::string text;
  const bool bytes = std::all_of(tokens.begin(), tokens.end(), [](std::uint16_t token) { return token < 256; });
  for (const std::uint16_t token : tokens) {
    text += bytes ? std::string(1, static_cast<char>(token)) : fmt::format("{} ", token);
  }
  return text;
}

}  // namespace ddptrain
