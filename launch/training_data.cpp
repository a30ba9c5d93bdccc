#include "launch/training_data.h"

#include <string>

#include "data/fashion_mnist.h"
#include "data/synthetic.h"
#include "models/registry.h"
#include "runtime/core/error.h"

namespace ddptrain {
namespace {

std::function<TrainingData()> find_images(const Options& options) {
  const std::string name = "synthetic";
  if (options.data == name) return [seed = options.seed] { return make_synthetic(60000, seed); };
  if (options.data.rfind(name + ":", 0) == 0) {
    const std::string text = options.data.substr(name.size() + 1);
    if (text.empty() || text.size() > 10 || text.find_first_not_of("0123456789") != std::string::npos) {
      usage_error("--data {}: give synthetic:COUNT, COUNT being a number of images", options.data);
    }
    return [seed = options.seed, count = std::stoll(text)] { return make_synthetic(count, seed); };
  }
  return [folder = find_fashion_mnist(options.data)] { return load_fashion_mnist(folder); };
}

std::function<TrainingData()> find_tokens(const Options& options, const World& world,
                                          const std::shared_ptr<const Pretrained>& pretrained) {
  if (options.data.empty()) {
    usage_error("--model {} needs --data: a text file, token files (.bin) or their folder, or synthetic",
                options.model);
  }
  TokenOptions tokens;
  tokens.vocabulary = options.gpt.vocabulary;
  tokens.validation_fraction = options.val_fraction;
  tokens.seed = options.seed;
  tokens.rank = world.rank();
  tokens.world_size = world.size();
  if (pretrained != nullptr && pretrained->tokenizer) {
    tokens.encode = [pretrained](std::string_view text) { return pretrained->tokenizer->encode(text); };
  }
  return [data = options.data, tokens] { return load_tokens(data, tokens); };
}

}  // namespace

std::function<TrainingData()> find_data(const Options& options, const World& world,
                                        const std::shared_ptr<const Pretrained>& pretrained) {
  return is_language_model(options.model) ? find_tokens(options, world, pretrained) : find_images(options);
}

void adopt(const TrainingData& data, Options& options) {
  const auto* tokens = std::get_if<TokenData>(&data);
  if (tokens != nullptr && options.gpt.vocabulary == 0) options.gpt.vocabulary = tokens->vocabulary;
}

std::int64_t train_count(const TrainingData& data, const Options& options) {
  if (const auto* images = std::get_if<ImageData>(&data)) return images->train.count;
  return TokenWindows(std::get<TokenData>(data).train, options.gpt.sequence).count();
}

ResidentSplits make_resident(const TrainingData& data, const Options& options, Device& device) {
  if (const auto* images = std::get_if<ImageData>(&data)) return make_resident(*images, device);
  return make_resident(std::get<TokenData>(data), options.gpt.sequence, device);
}

}  // namespace ddptrain
