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
/// Ranks that split layers divide the rows of the stream, too (Korthikanti et al., "Reducing activation recomputation",
/// arXiv:2205.05198): each normalises its own part, and the output and the gradient of the input are gathered.
class Norm {
 public:
  static constexpr std::size_t kParameters = 2;

  Norm(Device& device, std::int64_t width, float epsilon);

  void bind(const ModelTensors& tensors, std::size_t first);

  /// Memory of `output` and of what the backward pass needs besides `input`.
  void allocate(Activations& memory);
  void fit(const BatchShape& shape);
  Tensor input;   ///< The stream: [batch, sequence, width], or this rank's part of the rows.
  Tensor output;  ///< [batch, sequence, width]; may be e4m3.

  /// output = norm(input)
  void forward();
  /// input = residual + dropout(branch); output = norm(input). `residual`: as input. `branch`: as output, with its sums
  /// over the ranks in this rank's part.
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout);
  /// dinput = dresidual (where it has data) + the gradient through the norm; all as output. dinput_sums: see NormOps;
  /// without data where ranks divide rows. These ranks first add their doutput to each other, while
  /// `first` runs, and gather dinput in the end, while `second` runs. Other ranks call neither.
  using Work = std::function<void()>;
  void backward(const Tensor& doutput, const Tensor& dresidual, const Tensor& dinput, const Tensor& dinput_sums,
                bool accumulate, const Work& first = {}, const Work& second = {});
  /// This rank's part of the rows of an activation.
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
  BatchShape shape_, own_;        ///< Of all rows, and of its own.
  Tensor partial_;                ///< [2, width]: gradients of weight and bias from its own rows; unused if it has all.
};

}  // namespace ddptrain
