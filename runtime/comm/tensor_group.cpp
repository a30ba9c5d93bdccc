#include "runtime/comm/tensor_group.h"

#include "runtime/core/clocked.h"

namespace ddptrain {

void TensorGroup::sum(const Tensor& values) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "sum over split layers");
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { communicator_.wait(communicator_.all_reduce_sum(values, stream)); });
}

void TensorGroup::sum_beside(const Tensor& values, const std::function<void()>& work) {
  device_.in_communication_stream([&](Stream stream) {
    Communicator::Ticket ticket = 0;
    {
      const Span span(device_.timeline(), Lane::communication, stream, "sum over split layers");
      ticket = communicator_.all_reduce_sum(values, stream);
    }
    work();
    const Clocked clocked(seconds_waited_);
    communicator_.wait(ticket);
  });
}

void TensorGroup::gather(const Tensor& from, const Tensor& to) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "gather of split layers");
  const Clocked clocked(seconds_waited_);
  device_.in_communication_stream(
      [&](Stream stream) { communicator_.wait(communicator_.all_gather(from, to, stream)); });
}

}  // namespace ddptrain
