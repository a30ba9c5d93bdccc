#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "models/decoder/block.h"
#include "runtime/ops/quantisation.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// The strategy of linear layers that multiply in FP8. Does nothing unless the device and the model's sizes allow it.
class Fp8 {
 public:
  /// `trains`: whether the model is trained. Texts are continued without FP8.
  Fp8(Device& device, const DecoderConfig& config, const Stage& stage, std::int64_t slices, bool trains);

  bool fits() const { return fits_; }  ///< Whether batches of fitting sizes are multiplied in FP8.
  std::vector<BufferSpec> buffers() const;
  void bind(const ModelTensors& tensors, std::vector<std::unique_ptr<DecoderBlock>>& blocks);
  void restored();

  /// Whether a batch of this size is multiplied in FP8.
  bool fits_batch(const BatchShape& batch) const;
  void end_evaluation();  ///< The scales of training do not depend on what was evaluated.
  void end_backward();    ///< The scales of the next pass depend on the values of this one.

 private:
  std::vector<DType> scale_formats() const;

  QuantisationOps& quantisation_;
  std::int64_t width_;
  std::size_t scales_per_stage_;
  bool fits_;
  std::unique_ptr<Fp8Scales> scales_;  ///< Null before bind(), and if FP8 does not fit.
};

}  // namespace ddptrain
