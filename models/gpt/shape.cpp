#include "models/gpt/shape.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "models/layers/attention.h"
#include "models/layers/feed_forward.h"
#include "models/layers/parameters.h"
#include "runtime/core/error.h"

namespace ddptrain {

void check_shape(const GptShape& shape, const GptShapeNames& names) {
  const auto within = [&](const char* name, std::int64_t value, std::int64_t most) {
    if (value < 1 || value > most) usage_error("{}{} {}: give 1 to {}", names.where, name, value, most);
  };
  within(names.layers, shape.layers, 1000);
  within(names.width, shape.width, 65536);
  within(names.heads, shape.heads, 65536);
  within(names.feed_forward, shape.feed_forward, 1 << 20);
  within(names.sequence, shape.sequence, 1 << 20);
  within(names.vocabulary, shape.vocabulary, 65536);  // tokens are numbers of two bytes
  if (shape.width % shape.heads != 0) {
    usage_error("{}{} {}: give a number that divides {} {}", names.where, names.heads, shape.heads, names.width,
                shape.width);
  }
}

void check_parts(const GptShape& shape, std::int64_t parts, const GptShapeNames& names) {
  const auto divides = [&](const char* what, std::int64_t value) {
    if (value % parts != 0)
      usage_error("--tp {}: it does not divide {} {}. Give a number that does.", parts, what, value);
  };
  divides(names.heads, shape.heads);
  divides(names.feed_forward, shape.feed_forward);
  divides(names.sequence, shape.sequence);
  if (vocabulary_rows(shape, {parts, parts - 1}).count < 1) {
    usage_error("--tp {}: {} {} has no token left for the last part. Give a smaller number.", parts, names.vocabulary,
                shape.vocabulary);
  }
}

VocabularyRows vocabulary_rows(const GptShape& shape, const LayerPart& part) {
  if (part.count == 1) return {0, shape.vocabulary, shape.padded_vocabulary()};
  constexpr std::int64_t kMultiple = 16;  // rows and columns of products on GPUs
  const std::int64_t padded =
      ((shape.vocabulary + part.count - 1) / part.count + kMultiple - 1) / kMultiple * kMultiple;
  const std::int64_t first = part.index * padded;
  return {first, std::min(padded, shape.vocabulary - first), padded};
}

namespace {

void add_block(const GptShape& shape, const LayerPart& part, std::int64_t layer, std::vector<ParameterSpec>& specs) {
  const InitialValue normal = InitialValue::normal(0.02f);
  const InitialValue add = InitialValue::normal(0.02f / std::sqrt(2.0f * static_cast<float>(shape.layers)));
  const auto name = [layer](const char* part) { return fmt::format("h.{}.{}", layer, part); };
  add_sublayer({name("ln_2"), name("mlp.c_fc"), name("mlp.c_proj")},
               FeedForward::shape(shape.width, shape.feed_forward), part, normal, add, specs);
  add_sublayer({name("ln_1"), name("attn.c_attn"), name("attn.c_proj")}, Attention::shape(shape.width), part, normal,
               add, specs);
}

ParameterSpec token_embedding_spec(const GptShape& shape, const LayerPart& part, const InitialValue& initial) {
  const VocabularyRows rows = vocabulary_rows(shape, part);
  const Shape whole{shape.vocabulary, shape.width};
  ParameterSpec spec{"wte.weight", {rows.count, shape.width}, initial, true, rows.padded};
  const std::int64_t run = rows.count * shape.width;
  if (part.count > 1) spec.split = Split{whole, rows.first * shape.width, run, element_count(whole)};
  return spec;
}

}  // namespace

std::vector<ParameterSpec> gpt_parameters(const GptShape& shape, const LayerPart& part) {
  const InitialValue normal = InitialValue::normal(0.02f);
  std::vector<ParameterSpec> specs;
  add_norm("ln_f", shape.width, specs);
  for (std::int64_t layer = shape.layers - 1; layer > 0; --layer) add_block(shape, part, layer, specs);
  specs.push_back(token_embedding_spec(shape, part, normal));
  specs.push_back({"wpe.weight", {shape.sequence, shape.width}, normal, true});
  add_block(shape, part, 0, specs);
  for (ParameterSpec& spec : specs) spec.is_copy = part.index > 0 && !spec.split;
  return specs;
}

}  // namespace ddptrain
