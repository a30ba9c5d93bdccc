#pragma once

#include <cstdint>
#include <functional>

#include "models/layers/activations.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Layer norm of the residual stream (add_norm()): parameters, their gradients, and the activations of a batch.
///
/// Ranks that split layers also divide the rows of the stream (sequence parallelism: Korthikanti et al., "Reducing
/// activation recomputation", arXiv:2205.05198). Each rank normalises its own rows. Then the output, and in the
/// backward pass the gradient of the input, are gathered.
class Norm {
 public:
  static constexpr std::size_t kParameters = 2;

  Norm(Device& device, std::int64_t width, float epsilon);

  void bind(const ModelTensors& tensors, std::size_t first);

  /// Allocates `output`, and what the backward pass needs besides `input`.
  void allocate(Activations& memory);
  void fit(const BatchShape& shape);
  Tensor input;   ///< The stream: [batch, sequence, width], or this rank's part of the rows.
  Tensor output;  ///< [batch, sequence, width]; may be e4m3.

  /// output = norm(input)
  void forward();
  /// input = residual + dropout(branch); output = norm(input). `residual` has the shape of `input`, `branch` the shape
  /// of `output`. If ranks divide rows, only this rank's rows of `branch` are used.
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout);
  /// dinput = dresidual (if it has data) + the gradient through the norm. All have the shape of `output`. For
  /// `dinput_sums` see NormOps; it has no data if ranks divide rows. Such ranks first reduce doutput while `first`
  /// runs, and at the end gather dinput while `second` runs. Without a group neither is called.
  using Work = std::function<void()>;
  void backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                bool accumulate, const Work& first = {}, const Work& second = {});
  /// This rank's rows of an activation.
  Tensor own(const Tensor& activation) const;

 private:
  void backward_part(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, bool accumulate,
                     const Work& first, const Work& second);
  Dropout of_own(Dropout dropout) const;

  Device& device_;
  NormOps& norm_;
  ReductionOps& reduction_;
  std::int64_t width_;
  float epsilon_;
  Tensor weight_, bias_, dweight_, dbias_;
  Tensor statistics_;             ///< [rows, 2]
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all rows.
  BatchShape shape_, own_;        ///< All rows, and this rank's rows.
  Tensor partial_;  ///< [2, width]: gradients of weight and bias from this rank's rows, if it has not all.
};

}  // namespace ddptrain
