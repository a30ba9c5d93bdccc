#include "models/decoder/parameters.h"

#include <fmt/format.h>

#include "models/layers/attention.h"
#include "models/layers/mlp.h"

namespace ddptrain {
namespace {

/// Adds the parameters of block `layer`.
void add_block(const DecoderTable& table, const TensorSlice& slice, std::int64_t layer,
               std::vector<ParameterSpec>& specs) {
  const DecoderConfig& config = table.config;
  const DecoderNames& names = table.names;
  const auto name = [&](const std::string& part) { return fmt::format("{}.{}.{}", names.block, layer, part); };
  add_sublayer({name(names.mlp_norm), name(names.mlp_in), name(names.mlp_out)},
               Mlp::shape(config.width, config.mlp(), config.norm), slice, table.weight, table.residual_weight, specs);
  add_sublayer({name(names.attention_norm), name(names.qkv), name(names.attention_output)},
               Attention::shape(config.width, config.attention(), config.norm), slice, table.weight,
               table.residual_weight, specs);
  if (!config.normalises_heads) return;
  add_norm(name(names.query_norm), NormKind::rms, config.head_size, specs);
  add_norm(name(names.key_norm), NormKind::rms, config.head_size, specs);
}

/// [vocabulary, width]: an embedding of tokens, or an output layer. Ranks split its rows.
ParameterSpec vocabulary_spec(const DecoderTable& table, const std::string& name, const TensorSlice& slice) {
  const DecoderConfig& config = table.config;
  const VocabularyRows rows = config.vocabulary_rows(slice);
  const Shape whole{config.vocabulary, config.width};
  ParameterSpec spec{name + ".weight", {rows.count, config.width}, table.weight, true, rows.padded};
  const std::int64_t run = rows.count * config.width;
  if (slice.count > 1) spec.split = Split{whole, rows.first * config.width, run, element_count(whole)};
  return spec;
}

}  // namespace

DecoderParameters decoder_parameters(const DecoderTable& table, const TensorSlice& slice) {
  const DecoderConfig& config = table.config;
  const DecoderNames& names = table.names;
  DecoderParameters all;
  std::vector<ParameterSpec>& specs = all.specs;
  all.blocks.resize(static_cast<std::size_t>(config.layers));
  const auto range = [&](const auto& add) {
    const std::size_t first = specs.size();
    add();
    return DecoderParameters::Range{first, specs.size() - first};
  };
  const auto block = [&](std::int64_t layer) {
    all.blocks[static_cast<std::size_t>(layer)] = range([&] { add_block(table, slice, layer, specs); });
  };
  all.head = range([&] {
    if (!config.tied_head) specs.push_back(vocabulary_spec(table, names.head, slice));
    add_norm(names.final_norm, config.norm, config.width, specs);
  });
  for (std::int64_t layer = config.layers - 1; layer > 0; --layer) block(layer);
  all.embedding = range([&] {
    specs.push_back(vocabulary_spec(table, names.token_embedding, slice));
    if (!config.learns_positions()) return;
    specs.push_back({names.position_embedding + ".weight", {config.sequence, config.width}, table.weight, true});
  });
  block(0);
  for (ParameterSpec& spec : specs) spec.is_copy = slice.index > 0 && !spec.split;
  return all;
}

DecoderParameters DecoderParameters::of_stage(std::int64_t first_block, std::int64_t end_block) const {
  const auto layers = static_cast<std::int64_t>(blocks.size());
  const auto of_block = [&](std::int64_t layer) { return blocks[static_cast<std::size_t>(layer)]; };
  const std::size_t begin = end_block == layers ? 0 : end_block == 1 ? embedding.first : of_block(end_block - 1).first;
  const std::size_t end = first_block == 0 ? specs.size() : of_block(first_block).end();
  DecoderParameters stage = *this;
  stage.of_later_stages = begin;
  stage.specs = {specs.begin() + static_cast<std::ptrdiff_t>(begin), specs.begin() + static_cast<std::ptrdiff_t>(end)};
  const auto shift = [&](Range& range) { range.first -= begin; };
  shift(stage.head);
  shift(stage.embedding);
  for (Range& block : stage.blocks) shift(block);
  return stage;
}

}  // namespace ddptrain
