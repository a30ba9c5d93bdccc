#include "runtime/comm/tensor_group.h"

#include "runtime/core/clocked.h"

namespace ddptrain {

void TensorGroup::sum(const Tensor& values) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "sum over split layers");
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { communicator_.wait(communicator_.all_reduce_sum(values, stream)); });
}

void TensorGroup::gather(const Tensor& from, const Tensor& to) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "gather of split layers");
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { communicator_.wait(communicator_.all_gather(from, to, stream)); });
}

}  // namespace ddptrain
