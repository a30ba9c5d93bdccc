#include "runtime/comm/tensor_group.h"

#include <optional>

#include "runtime/core/clocked.h"

namespace ddptrain {

void TensorGroup::run(const std::vector<Collective>& collectives, const std::function<void()>& work) {
  device_.in_communication_stream([&](Stream stream) {
    std::optional<Span> span(std::in_place, device_.timeline(), work ? Lane::communication : Lane::compute, stream,
                             "exchange of split layers");
    std::optional<Clocked> clocked(std::in_place, seconds_waited_);
    Communicator::Ticket last = 0;
    for (const auto& [start, from, to] : collectives) last = (communicator_.*start)(from, to, stream);
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
