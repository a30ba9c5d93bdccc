#pragma once

#include <cstdint>
#include <vector>

namespace ddptrain {

/// Llama 3's scaling of rotary positions to longer windows. Pairs that turn fewer than `low_frequency_factor` times in
/// the windows of the first training turn `factor` times slower. Pairs that turn more than `high_frequency_factor`
/// times keep their frequency. Between them the frequency changes smoothly.
struct RotaryScaling {
  double factor = 1.0;  ///< 1: no scaling.
  double low_frequency_factor = 1.0;
  double high_frequency_factor = 4.0;
  std::int64_t original_positions = 8192;  ///< Tokens of a window in the first training.

  bool operator==(const RotaryScaling&) const = default;
};

/// The kind of rotary positions.
struct Rotary {
  double base = 0.0;  ///< 0: no rotary positions.
  RotaryScaling scaling = {};

  bool turns() const { return base > 0.0; }
};

/// The angle per position of each pair of elements [head_size / 2]: base^(-2 i / head_size), scaled.
std::vector<double> rotary_frequencies(const Rotary& rotary, std::int64_t head_size);

}  // namespace ddptrain
