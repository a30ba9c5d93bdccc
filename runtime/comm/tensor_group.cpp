#include "runtime/comm/tensor_group.h"

#include <optional>
#include <utility>

#include "runtime/core/clocked.h"

namespace ddptrain {

void TensorGroup::run(const std::vector<Collective>& collectives, const std::function<void()>& work) {
  const auto start_all = [&](Stream stream) {
    Communicator::Ticket last = 0;
    for (const auto& [start, from, to] : collectives) last = (communicator_.*start)(from, to, stream);
    return last;
  };
  run(start_all, work);
}

void TensorGroup::gather_after_swap(const std::vector<Tensor>& all, const std::function<void()>& work) {
  run([&](Stream stream) { return communicator_.gather_after_swap(all, stream); }, work);
}

void TensorGroup::run(const Start& start, const std::function<void()>& work) {
  if (compute_) return run_on(device_.compute_stream(), start, work);
  device_.in_communication_stream([&](Stream stream) { run_on(stream, start, work); });
}

void TensorGroup::run_on(Stream stream, const Start& start, const std::function<void()>& work) {
  const Lane lane = work || compute_ ? Lane::communication : Lane::compute;
  std::optional<Span> span(std::in_place, device_.timeline(), lane, stream, "exchange of split layers");
  std::optional<Clocked> clocked(std::in_place, seconds_waited_);
  const Communicator::Ticket last = start(stream);
  if (work) {
    span.reset();
    clocked.reset();
    device_.queue_in(compute_.value_or(device_.compute_stream()), work);
    clocked.emplace(seconds_waited_);
  }
  communicator_.wait(last);
}

TensorGroup::Chunk& TensorGroup::chunk(std::size_t index) {
  if (index >= chunks_.size()) chunks_.resize(index + 1);
  return chunks_[index];
}

void TensorGroup::computed(std::size_t index) { chunk(index).computed = device_.mark(device_.compute_stream()); }

void TensorGroup::exchange(std::size_t index, const Tensor& received, const std::function<void()>& work) {
  Chunk& chunk = this->chunk(index);
  const Stream compute = device_.compute_stream();
  const bool copies = communicator_.copies_into(received);
  const Stream stream = copies ? device_.exchange_stream(index) : device_.communication_stream();
  if (const auto computed = std::move(chunk.computed)) {
    device_.wait_until(stream, *computed);
  } else {
    device_.wait_for(stream, compute);
  }
  struct Exchanging {
    std::optional<Stream>& compute;
    ~Exchanging() { compute.reset(); }
  };
  {
    const Exchanging exchanging{compute_};
    compute_ = compute;
    device_.queue_in(stream, work);
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
