#pragma once

#include "models/llama/llama.h"

namespace ddptrain::tests {

/// A small model of the second family of transformers: RMS norms, rotary positions, SwiGLU, grouped keys and values, no
/// biases, an output layer with a weight of its own.
inline DecoderTable tiny_llama(std::int64_t layers = 4) {
  return llama_table({.layers = layers,
                      .width = 24,
                      .heads = 8,
                      .key_heads = 4,
                      .head_size = 6,
                      .feed_forward = 40,
                      .sequence = 8,
                      .vocabulary = 61,
                      .rotary_base = 100.0,
                      .rotary_scaling = {4.0, 1.0, 4.0, 16},
                      .tied_head = false});
}

}  // namespace ddptrain::tests
