#include "runtime/comm/tensor_group.h"

#include <optional>
#include <utility>

#include "runtime/core/clocked.h"

namespace ddptrain {

void TensorGroup::run(const std::vector<Collective>& collectives, const std::function<void()>& work) {
  const Lane lane = work || exchanging_ ? Lane::communication : Lane::compute;
  device_.in_communication_stream([&](Stream stream) {
    std::optional<Span> span(std::in_place, device_.timeline(), lane, stream, "exchange of split layers");
    std::optional<Clocked> clocked(std::in_place, seconds_waited_);
    Communicator::Ticket last = 0;
    for (const auto& [start, from, to] : collectives) last = (communicator_.*start)(from, to, stream);
    if (work) {
      span.reset();
      clocked.reset();
      device_.queue_in(Lane::compute, work);
      clocked.emplace(seconds_waited_);
    }
    communicator_.wait(last);
  });
}

TensorGroup::Chunk& TensorGroup::chunk(std::size_t index) {
  if (index >= chunks_.size()) chunks_.resize(index + 1);
  return chunks_[index];
}

void TensorGroup::computed(std::size_t index) { chunk(index).computed = device_.mark(device_.compute_stream()); }

void TensorGroup::exchange(std::size_t index, const std::function<void()>& work) {
  Chunk& chunk = this->chunk(index);
  const Stream stream = device_.communication_stream();
  if (const auto computed = std::move(chunk.computed)) {
    device_.wait_until(stream, *computed);
  } else {
    device_.wait_for(stream, device_.compute_stream());
  }
  struct Exchanging {
    bool& now;
    ~Exchanging() { now = false; }
  };
  {
    const Exchanging exchanging{exchanging_ = true};
    device_.queue_in(Lane::communication, work);
  }
  chunk.exchanged = device_.mark(stream);
}

void TensorGroup::await(std::size_t index) {
  if (const auto exchanged = std::move(chunk(index).exchanged)) {
    device_.wait_until(device_.compute_stream(), *exchanged);
  }
}

void TensorGroup::await_all() {
  for (std::size_t index = 0; index < chunks_.size(); ++index) await(index);
}

}  // namespace ddptrain
