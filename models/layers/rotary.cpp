#include "models/layers/rotary.h"

#include <cmath>
#include <numbers>

namespace ddptrain {
namespace {

double scaled(double frequency, const RotaryScaling& scaling) {
  const double turns = static_cast<double>(scaling.original_positions) * frequency / (2.0 * std::numbers::pi);
  const double low = scaling.low_frequency_factor;
  const double high = scaling.high_frequency_factor;
  if (turns > high) return frequency;
  if (turns < low) return frequency / scaling.factor;
  const double kept = (turns - low) / (high - low);
  return kept * frequency + (1.0 - kept) * frequency / scaling.factor;
}

}  // namespace

std::vector<double> rotary_frequencies(const Rotary& rotary, std::int64_t head_size) {
  std::vector<double> frequencies;
  for (std::int64_t i = 0; i < head_size / 2; ++i) {
    const double exponent = -2.0 * static_cast<double>(i) / static_cast<double>(head_size);
    const double frequency = std::pow(rotary.base, exponent);
    frequencies.push_back(rotary.scaling.factor == 1.0 ? frequency : scaled(frequency, rotary.scaling));
  }
  return frequencies;
}

}  // namespace ddptrain
