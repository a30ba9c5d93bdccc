#include "models/gpt/work.h"

#include "runtime/core/error.h"

namespace ddptrain {

namespace {

/// FLOP of a window's matrix products, forward. The gradient of a product's left side takes as many, and so does that
/// of its right side.
struct Products {
  double qkv, scores, projection, expansion, contraction, head;

  explicit Products(const GptShape& shape) {
    const auto linear = [&](std::int64_t in, std::int64_t out) {
      return 2.0 * static_cast<double>(shape.sequence) * static_cast<double>(in) * static_cast<double>(out);
    };
    qkv = linear(shape.width, 3 * shape.width);
    scores = 2.0 * linear(shape.width, shape.sequence);  // queries by keys, and their softmax by values
    projection = linear(shape.width, shape.width);
    expansion = linear(shape.width, shape.feed_forward);
    contraction = linear(shape.feed_forward, shape.width);
    head = linear(shape.width, shape.vocabulary);
  }

  double attention() const { return qkv + scores + projection; }
  double mlp() const { return expansion + contraction; }
};

/// FLOP of the backward pass before each gradient is complete, in the order of Gpt::backward() and GptBlock.
std::vector<double> ready_after(const GptShape& shape, const Products& products, bool recomputes) {
  std::vector<double> after;
  double flop = 0.0;
  const auto ready = [&](double more, std::size_t parameters) {
    flop += more;
    after.insert(after.end(), parameters, flop);
  };
  const auto restore = [&](std::int64_t layer) {
    if (recomputes && layer < shape.layers - 1) flop += products.attention() + products.expansion;
  };
  const auto mlp_weights = [&] {
    ready(products.contraction, 2);
    ready(products.expansion, 4);  // with the norm before it
  };
  const auto attention_weights = [&] {
    ready(products.projection, 2);
    ready(products.qkv, 4);  // with the norm before it
  };
  const double mlp_data = products.mlp(), attention_data = products.attention() + products.scores;
  ready(2.0 * products.head, 2);  // the final norm
  for (std::int64_t layer = shape.layers - 1; layer > 0; --layer) {
    restore(layer);
    flop += mlp_data;
    mlp_weights();
    flop += attention_data;
    attention_weights();
  }
  restore(0);
  ready(mlp_data + attention_data, 2);  // the embeddings
  mlp_weights();
  attention_weights();
  return after;
}

LayerWork attention(const GptShape& shape, const Products& products, std::int64_t layer, double backward_passes) {
  const auto sequence = static_cast<double>(shape.sequence);
  const double full = products.attention();
  const double causal = full - products.scores * (sequence - 1.0) / (2.0 * sequence);
  return {fmt::format("h.{}.attn", layer), full, backward_passes * full, causal, backward_passes * causal};
}

}  // namespace

ModelWork gpt_work(const GptShape& shape, Recompute recompute) {
  const Products products(shape);
  ModelWork work;
  work.layers.push_back({"embedding"});
  for (std::int64_t layer = 0; layer < shape.layers; ++layer) {
    const bool again = recompute == Recompute::block && layer < shape.layers - 1;  // the last one's is still there
    const double mlp = products.mlp();
    work.layers.push_back(attention(shape, products, layer, again ? 3.0 : 2.0));
    work.layers.push_back({fmt::format("h.{}.mlp", layer), mlp, 2.0 * mlp + (again ? products.expansion : 0.0)});
  }
  work.layers.push_back({"lm_head", products.head, 2.0 * products.head});
  work.ready_after = ready_after(shape, products, recompute == Recompute::block);
  return work;
}

std::vector<Sent> gpt_sends(const GptShape& shape, const GptStage& stage, std::int64_t parts, Recompute recompute,
                            std::int64_t batch, std::int64_t passes, Precision precision) {
  constexpr std::int64_t kNumbers = 4 * sizeof(float);  // of a prediction, or of a column of a norm
  const bool embeds = stage.first == 0, has_head = stage.end == shape.layers;
  const std::int64_t rows = batch * shape.sequence;
  const auto element = static_cast<std::int64_t>(size_of(compute_dtype(precision)));
  const auto gradient_element = static_cast<std::int64_t>(size_of(master_dtype(precision)));
  const std::int64_t activation = rows * shape.width * element;
  const std::int64_t tied = vocabulary_rows(shape, {parts, 0}).padded * shape.width;
  std::vector<Sent> sends;
  if (!has_head) {  // the stream, and the branch to be added; the tied weight once
    sends.push_back({"pipeline", "forward", passes, passes * (2 * activation / parts) + tied * element});
  }
  if (!embeds) {
    sends.push_back({"pipeline", "backward", passes, passes * (activation + tied * gradient_element)});
  }
  if (parts == 1) return sends;
  const std::int64_t blocks = stage.end - stage.first, heads = has_head ? 1 : 0, norms = 2 * blocks + heads;
  std::int64_t forward = 4 * blocks + (embeds ? 1 : 0) + heads;  // sums of rows, and gathers of all
  if (recompute == Recompute::block) forward += 3 * (blocks - 1);
  const std::int64_t others = parts - 1, rows_of_others = activation * others / parts;
  sends.push_back({"tensor", "forward", passes * (forward + heads),
                   passes * (forward * rows_of_others + heads * kNumbers * rows * others)});
  sends.push_back({"tensor", "backward", passes * 3 * norms,
                   passes * norms * (2 * rows_of_others + kNumbers * shape.width * others / parts)});
  return sends;
}

}  // namespace ddptrain
