#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "models/decoder/config.h"
#include "models/decoder/parameters.h"

/// The family of Llama 2 and 3 (Touvron et al., arXiv:2307.09288), Qwen2 and 2.5, and Qwen3: a table.

namespace ddptrain {

/// Sizes and kinds of a model of this family. The defaults are sizes of SmolLM-135M.
struct LlamaShape {
  std::int64_t layers = 30;
  std::int64_t width = 576;
  std::int64_t heads = 9;
  std::int64_t key_heads = 0;  ///< Heads of keys and values. 0: as many as `heads`.
  std::int64_t head_size = 0;  ///< 0: width / heads.
  std::int64_t feed_forward = 1536;
  std::int64_t sequence = 1024;  ///< Tokens of a window.
  std::int64_t positions = 0;    ///< The longest window that the model was made for. 0: `sequence`.
  std::int64_t vocabulary = 49152;
  double norm_epsilon = 1e-5;
  double rotary_base = 10000.0;
  RotaryScaling rotary_scaling = {};
  bool qkv_bias = false;    ///< Qwen2.
  bool head_norms = false;  ///< Qwen3: RMS norms of queries and keys.
  bool tied_head = true;

  bool operator==(const LlamaShape&) const = default;

  std::int64_t all_key_heads() const { return key_heads > 0 ? key_heads : heads; }
  /// 0 if `heads` does not divide the width.
  std::int64_t size_of_head() const {
    if (head_size > 0) return head_size;
    return heads > 0 && width % heads == 0 ? width / heads : 0;
  }
  std::int64_t most_positions() const { return positions > 0 ? positions : sequence; }

  /// All of it as integers, for reports and checkpoints: sizes as they are, switches as 0 or 1, and numbers in the unit
  /// that the name ends with. The scaling is left out if there is none.
  std::map<std::string, std::int64_t> sizes() const;
  /// The shape with these sizes(). Error if one is missing.
  static LlamaShape of_sizes(const std::map<std::string, std::int64_t>& sizes);
};

/// The decoder of this shape. Names are Hugging Face's without the prefix "model.", but for two weights that are one
/// here: qkv_proj has the rows of q_proj, k_proj and v_proj, group by group (GroupedHeads), and gate_up_proj those of
/// gate_proj, then those of up_proj. The initial values of all weights have the standard deviation 0.02; of weights
/// whose output is added to the residual stream, 0.02 / sqrt(2 layers).
DecoderTable llama_table(const LlamaShape& shape);

/// Its parameters, or one rank's slice of them.
std::vector<ParameterSpec> llama_parameters(const LlamaShape& shape, const TensorSlice& slice = {});

}  // namespace ddptrain
