#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "runtime/train/model.h"
#include "runtime/train/step/store/bucket_plan.h"

namespace ddptrain {

/// The initial values of an arena, in pieces, so that the host never has them all. Random values follow from `seed` and
/// the names of the parameters. If ranks split a parameter, each makes its slice of the whole.
class InitialValues {
 public:
  /// References outlive the object.
  InitialValues(const std::vector<ParameterSpec>& specs, const BucketPlan& plan, std::uint64_t seed)
      : specs_(specs), plan_(plan), seed_(seed) {}

  /// Sets `values` to the elements of the arena from `begin` on, with zeros as padding. Uses all cores. Pretrained
  /// values are read once if pieces come in order.
  void make(std::int64_t begin, std::span<float> values);

 private:
  struct Piece;

  void add_parameter(std::size_t parameter, std::int64_t begin, std::span<float> values, std::vector<Piece>& random);
  const std::vector<float>& read(std::size_t parameter);

  const std::vector<ParameterSpec>& specs_;
  const BucketPlan& plan_;
  std::uint64_t seed_;
  std::optional<std::size_t> read_parameter_;
  std::vector<float> read_;  ///< The whole values of that parameter.
};

}  // namespace ddptrain
