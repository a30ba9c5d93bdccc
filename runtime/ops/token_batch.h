#pragma once

#include <cstdint>

#include "runtime/core/step.h"

/// Batches of token windows, cut from a text on the fly. Window w of a stretch of text (a segment) covers its tokens
/// [w T, w T + T], T being the sequence length: T inputs, and as targets the same shifted by one. Neighbours share one
/// token, and no window crosses the end of a segment.

namespace ddptrain {

/// One segment, where the device computes.
struct TokenSegmentView {
  const void* tokens = nullptr;
  std::uint32_t first_window = 0;  ///< Number of windows in the segments before it.
};

/// The T + 1 tokens of one window.
struct TokenWindow {
  const void* tokens;
  std::uint8_t token_bytes;

  /// Input `position`, in [0, T), or, one further on, its target.
  DDP_HOST_DEVICE std::uint32_t operator[](std::uint32_t position) const {
    if (token_bytes == 1) return static_cast<const std::uint8_t*>(tokens)[position];
    if (token_bytes == 2) return static_cast<const std::uint16_t*>(tokens)[position];
    return static_cast<const std::uint32_t*>(tokens)[position];
  }
};

/// A view of a text as windows, numbered over all segments. Owns nothing; all pointers are of the device's memory.
struct TokenSource {
  const TokenSegmentView* segments = nullptr;  ///< By first_window; a segment may be too short for a window.
  std::uint32_t segment_count = 0;
  std::uint32_t window_count = 0;
  std::uint32_t sequence = 0;    ///< T
  std::uint8_t token_bytes = 0;  ///< 1, 2 or 4 (little-endian), the same in all segments.

  /// The segment that holds `window`, in [0, window_count).
  DDP_HOST_DEVICE std::uint32_t segment_of(std::uint32_t window) const {
    std::uint32_t low = 0;
    std::uint32_t high = segment_count;
    while (high - low > 1) {
      const std::uint32_t middle = low + (high - low) / 2;
      if (segments[middle].first_window <= window) {
        low = middle;
      } else {
        high = middle;
      }
    }
    return low;
  }

  DDP_HOST_DEVICE TokenWindow window(std::uint32_t index) const {
    const TokenSegmentView& segment = segments[segment_of(index)];
    const std::uint64_t first = static_cast<std::uint64_t>(index - segment.first_window) * sequence;
    return {static_cast<const std::uint8_t*>(segment.tokens) + first * token_bytes, token_bytes};
  }

  /// `position` in [0, sequence].
  DDP_HOST_DEVICE std::uint32_t token(std::uint32_t index, std::uint32_t position) const {
    return window(index)[position];
  }
};

/// The tokens that an embedding or an output layer has, if ranks split the vocabulary: as many as it has rows.
struct VocabularySlice {
  std::uint32_t first = 0;
  std::uint32_t all = 0;  ///< Tokens of all slices; 0: the vocabulary is not split.

  /// Row of `token`. At least the number of rows if another slice has the token.
  DDP_HOST_DEVICE std::uint32_t row(std::uint32_t token) const { return token - first; }
};

/// A slice of windows: row r is window BatchRows(order, step)[r] of `source`; the order's data set is the windows
/// (order.dataset_size == source.window_count).
struct TokenBatch : Slice {
  TokenSource source;
  VocabularySlice vocabulary_slice = {};
  /// The position of the first input of each window in its text, where the device computes. Null: 0.
  const std::int64_t* first_position = nullptr;

  /// The position in its text of input `row` of a window.
  DDP_HOST_DEVICE std::int64_t position(std::int64_t row) const {
    return first_position != nullptr ? *first_position + row : row;
  }
};

}  // namespace ddptrain
