#include "models/decoder/work.h"

#include "models/decoder/parameters.h"
#include "models/decoder/stage.h"
#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// FLOP of a window's matrix multiplications, forward. The gradient of a product's left side takes as many, and so does
/// the gradient of its right side.
struct Products {
  double qkv;
  double scores;
  double projection;
  double expansion;
  double contraction;
  double head;

  explicit Products(const DecoderConfig& config) {
    const auto linear = [&](std::int64_t in, std::int64_t out) {
      return 2.0 * static_cast<double>(config.sequence) * static_cast<double>(in) * static_cast<double>(out);
    };
    const AttentionKind attention = config.attention();
    qkv = linear(config.width, attention.qkv_columns());
    scores = 2.0 * linear(attention.width(), config.sequence);  // queries by keys, and their softmax by values
    projection = linear(attention.width(), config.width);
    expansion = linear(config.width, config.mlp().pre_columns());
    contraction = linear(config.hidden, config.width);
    head = linear(config.width, config.vocabulary);
  }

  double attention() const { return qkv + scores + projection; }
  double mlp() const { return expansion + contraction; }
};

/// How many parameters each kind of layer has.
struct Counts {
  std::size_t attention_output;
  std::size_t qkv_and_norm;
  std::size_t mlp_out;
  std::size_t mlp_in_and_norm;
  std::size_t head;
  std::size_t embedding;

  explicit Counts(const DecoderConfig& config) {
    const std::size_t norm = config.norm == NormKind::layer ? 2 : 1;
    const auto linear = [](bool bias) -> std::size_t { return bias ? 2 : 1; };
    attention_output = linear(config.output_bias);
    qkv_and_norm = linear(config.qkv_bias) + norm + (config.normalises_heads ? 2 : 0);
    mlp_out = linear(config.mlp_bias);
    mlp_in_and_norm = linear(config.mlp_bias) + norm;
    head = norm + (config.tied_head ? 0 : 1);
    embedding = config.learns_positions() ? 2 : 1;
  }
};

/// By block: whether the backward pass computes all of its activations again.
std::vector<bool> recomputed_blocks(const DecoderConfig& config, Recompute recompute, std::int64_t stages) {
  std::vector<bool> recomputed(static_cast<std::size_t>(config.layers), false);
  if (recompute != Recompute::block) return recomputed;
  for (std::int64_t i = 0; i < stages; ++i) {
    const Stage stage(config, stage_blocks(config, stages, i));
    for (std::int64_t layer = stage.first_block(); layer <= stage.last_block(); ++layer) {
      recomputed[static_cast<std::size_t>(layer)] = stage.restores(layer);
    }
  }
  return recomputed;
}

/// FLOP of the backward pass before each gradient is complete, in the order of Decoder::backward() and DecoderBlock.
std::vector<double> ready_after(const DecoderConfig& config, const Products& products,
                                const std::vector<bool>& recomputed) {
  const Counts counts(config);
  std::vector<double> after;
  double flop = 0.0;
  const auto ready = [&](double more, std::size_t parameters) {
    flop += more;
    after.insert(after.end(), parameters, flop);
  };
  const auto restore = [&](std::int64_t layer) {
    if (recomputed[static_cast<std::size_t>(layer)]) flop += products.attention() + products.expansion;
  };
  const auto mlp_weights = [&] {
    ready(products.contraction, counts.mlp_out);
    ready(products.expansion, counts.mlp_in_and_norm);
  };
  const auto attention_weights = [&] {
    ready(products.projection, counts.attention_output);
    ready(products.qkv, counts.qkv_and_norm);
  };
  const double mlp_data = products.mlp();
  const double attention_data = products.attention() + products.scores;
  ready(2.0 * products.head, counts.head);
  for (std::int64_t layer = config.layers - 1; layer > 0; --layer) {
    restore(layer);
    flop += mlp_data;
    mlp_weights();
    flop += attention_data;
    attention_weights();
  }
  restore(0);
  ready(mlp_data + attention_data, counts.embedding);
  mlp_weights();
  attention_weights();
  return after;
}

LayerWork attention_work(const DecoderConfig& config, const Products& products, const std::string& name,
                         double backward_passes) {
  const auto sequence = static_cast<double>(config.sequence);
  const double full = products.attention();
  const double causal = full - products.scores * (sequence - 1.0) / (2.0 * sequence);
  return {name, full, backward_passes * full, causal, backward_passes * causal};
}

}  // namespace

ModelWork decoder_work(const DecoderConfig& config, const std::string& block, Recompute recompute,
                       std::int64_t stages) {
  const Products products(config);
  const std::vector<bool> recomputed = recomputed_blocks(config, recompute, stages);
  ModelWork work;
  work.layers.push_back({"embedding"});
  for (std::int64_t layer = 0; layer < config.layers; ++layer) {
    const std::string name = fmt::format("{}.{}", block, layer);
    const bool again = recomputed[static_cast<std::size_t>(layer)];
    const double mlp = products.mlp();
    work.layers.push_back(attention_work(config, products, name + ".attn", again ? 3.0 : 2.0));
    work.layers.push_back({name + ".mlp", mlp, 2.0 * mlp + (again ? products.expansion : 0.0)});
  }
  work.layers.push_back({"lm_head", products.head, 2.0 * products.head});
  work.ready_after = ready_after(config, products, recomputed);
  return work;
}

std::vector<Sent> decoder_sends(const DecoderConfig& config, const StageBlocks& blocks, const SentPass& pass,
                                std::int64_t passes) {
  const Stage stage(config, blocks);
  const std::int64_t slices = pass.slices;
  const std::int64_t rows = pass.batch * config.sequence;
  const auto element = static_cast<std::int64_t>(size_of(compute_dtype(pass.precision)));
  const auto gradient_element = static_cast<std::int64_t>(size_of(master_dtype(pass.precision)));
  const std::int64_t activation = rows * config.width * element;
  const std::int64_t tied = config.tied_head ? config.vocabulary_rows({slices, 0}).padded * config.width : 0;
  std::vector<Sent> sends;
  if (!stage.has_head()) {  // the stream, and the branch to be added; the tied weight once
    sends.push_back({"pipeline", "forward", passes, passes * (2 * activation / slices) + tied * element});
  }
  if (!stage.has_embedding()) {
    sends.push_back({"pipeline", "backward", passes, passes * (activation + tied * gradient_element)});
  }
  if (slices == 1) return sends;

  const std::int64_t heads = stage.has_head() ? 1 : 0;
  const std::int64_t norms = 2 * stage.blocks() + heads;
  const std::int64_t chunks = std::ssize(BatchShape{pass.batch, config.sequence}.chunks(slices));
  std::int64_t forward = 4 * stage.blocks() + (stage.has_embedding() ? 1 : 0) + heads;  // sums of rows, and gathers
  if (pass.recompute == Recompute::selective) forward += 2 * stage.restored_blocks();   // gathers of the norms' outputs
  if (pass.recompute == Recompute::block) forward += 3 * stage.restored_blocks();
  const std::int64_t others = slices - 1;
  const std::int64_t rows_of_others = activation * others / slices;
  const auto number = static_cast<std::int64_t>(sizeof(float));
  const std::int64_t softmax = LossOps::kSoftmaxStatistics * number * rows * others;
  sends.push_back({"tensor", "forward", passes * (chunks * forward + heads),
                   passes * (forward * rows_of_others + heads * softmax)});
  const std::int64_t norm_gradients = (config.norm == NormKind::layer ? 2 : 1) * config.width;
  const std::int64_t gathered = number * norm_gradients * others;
  const std::int64_t head_norms = config.normalises_heads ? stage.blocks() : 0;  // of queries and keys
  const std::int64_t head_norm_bytes = chunks * 2 * number * 2 * config.head_size * others / slices;
  sends.push_back({"tensor", "backward", passes * ((2 * chunks + 1) * norms + chunks * head_norms),
                   passes * (norms * (2 * rows_of_others + gathered) + head_norms * head_norm_bytes)});
  return sends;
}

}  // namespace ddptrain
