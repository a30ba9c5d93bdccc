#pragma once

#include <cstdint>
#include <vector>

namespace ddptrain::tests {

/// Host values of a tensor.
using Values = std::vector<double>;

/// The same for the same arguments, on every machine.
Values random_values(std::int64_t count, std::uint32_t seed, double low = -1.0, double high = 1.0);

/// Multiples of 1/8, exact in every precision; ties are frequent.
Values random_eighths(std::int64_t count, std::uint32_t seed, double limit);

double norm(const Values& values);

/// |out - expected| / |expected|; NaN where any value is one.
double relative_error(const Values& out, const Values& expected);

}  // namespace ddptrain::tests
