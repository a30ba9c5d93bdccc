#include "runtime/comm/tensor_group.h"

#include <optional>

#include "runtime/core/clocked.h"

namespace ddptrain {

Communicator::Ticket TensorGroup::start(const Collective& collective, Stream stream) {
  switch (collective.kind) {
    case Collective::Kind::sum:
      return communicator_.all_reduce_sum(collective.from, collective.to, stream);
    case Collective::Kind::sum_part:
      return communicator_.reduce_scatter_sum(collective.from, collective.to, stream);
    case Collective::Kind::gather:
      break;
  }
  return communicator_.all_gather(collective.from, collective.to, stream);
}

void TensorGroup::run(const std::vector<Collective>& collectives, const std::function<void()>& work) {
  device_.in_communication_stream([&](Stream stream) {
    std::optional<Span> span(std::in_place, device_.timeline(), work ? Lane::communication : Lane::compute, stream,
                             "exchange of split layers");
    std::optional<Clocked> clocked(std::in_place, seconds_waited_);
    Communicator::Ticket last = 0;
    for (const Collective& collective : collectives) last = start(collective, stream);
    if (work) {
      span.reset();
      clocked.reset();
      work();
      clocked.emplace(seconds_waited_);
    }
    communicator_.wait(last);
  });
}

}  // namespace ddptrain
