#pragma once

#include <cstdint>
#include <string>

#include "models/layers/attention.h"
#include "models/layers/head.h"
#include "models/layers/mlp.h"
#include "models/layers/parameters.h"

/// The table that makes a decoder-only transformer. A family of models is a function that fills it in.

namespace ddptrain {

enum class PositionKind : std::uint8_t {
  learned,  ///< An embedding of positions is added to the embedding of tokens.
  rotary,   ///< Attention turns queries and keys.
  none,
};

/// Sizes and kinds of a decoder-only transformer. Nothing else decides what the network is.
struct DecoderConfig {
  std::int64_t layers = 0;
  std::int64_t width = 0;      ///< Columns of the residual stream.
  std::int64_t heads = 0;      ///< Heads of queries.
  std::int64_t key_heads = 0;  ///< Heads of keys and values; it divides `heads`.
  std::int64_t head_size = 0;  ///< Columns of a head.
  std::int64_t hidden = 0;     ///< Inputs of the second linear layer of an MLP.
  std::int64_t sequence = 0;   ///< Most tokens of a window.
  std::int64_t vocabulary = 0;
  NormKind norm = NormKind::layer;
  double norm_epsilon = 1e-5;
  PositionKind positions = PositionKind::learned;
  double rotary_base = 10000.0;  ///< Unused without rotary positions, and so is the next.
  RotaryScaling rotary_scaling = {};
  MlpActivation activation = MlpActivation::gelu;
  bool normalises_heads = false;  ///< RMS norms of queries and keys.
  bool qkv_bias = true;
  bool output_bias = true;  ///< Of attention's projection.
  bool mlp_bias = true;     ///< Of both linear layers of an MLP.
  bool tied_head = true;    ///< The output layer has the weight of the token embedding.

  bool operator==(const DecoderConfig&) const = default;

  AttentionKind attention() const;
  MlpKind mlp() const { return {hidden, activation, mlp_bias}; }
  bool learns_positions() const { return positions == PositionKind::learned; }
  float epsilon() const { return static_cast<float>(norm_epsilon); }
  /// The tokens that one slice of the embedding and the output layer has.
  VocabularyRows vocabulary_rows(const TensorSlice& slice) const;
};

/// The names of a model's layers. ".weight" and ".bias" follow in the names of parameters, which are their identity in
/// checkpoints and the seed of their initial values. A name may be empty if no layer has it.
struct DecoderNames {
  std::string token_embedding = {};
  std::string position_embedding = {};
  std::string final_norm = {};
  std::string head = {};   ///< Of an output layer with a weight of its own.
  std::string block = {};  ///< Block i is "<block>.<i>". The names below follow it and a dot.
  std::string attention_norm = {};
  std::string qkv = {};
  std::string attention_output = {};
  std::string query_norm = {};
  std::string key_norm = {};
  std::string mlp_norm = {};
  std::string mlp_in = {};
  std::string mlp_out = {};
};

/// All that a family of models gives to the decoder.
struct DecoderTable {
  DecoderConfig config;
  DecoderNames names;
  InitialValue weight;           ///< Of weights and embeddings.
  InitialValue residual_weight;  ///< Of weights whose output is added to the residual stream.
};

/// The names of sizes in messages: flags, or entries of config.json. `where` precedes every message.
struct SizeNames {
  std::string where;
  const char* layers = "layers";
  const char* width = "width";
  const char* heads = "heads";
  const char* hidden = "feed_forward";
  const char* sequence = "sequence";
  const char* vocabulary = "vocabulary";
  const char* key_heads = "key_heads";
  const char* head_size = "head_size";
};

/// UsageError if no model can have this table.
void check_config(const DecoderConfig& config, const SizeNames& names = {});
/// UsageError about --tp if `slices` ranks cannot split the layers.
void check_slices(const DecoderConfig& config, std::int64_t slices, const SizeNames& names);

/// The activations that the backward pass recomputes, so that they need not be kept. Each also recomputes what those
/// above it do.
enum class Recompute : std::uint8_t {
  none,
  gelu,       ///< The output of an MLP's activation.
  selective,  ///< The outputs of norms. No matrix multiplication is repeated.
  block,      ///< All activations of a block but its input.
};
/// Whether the output of an MLP's activation is computed again from its input, without a matrix multiplication.
constexpr bool restores_hidden(Recompute recompute) {
  return recompute == Recompute::gelu || recompute == Recompute::selective;
}

}  // namespace ddptrain
