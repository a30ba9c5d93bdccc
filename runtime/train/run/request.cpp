#include "runtime/train/run/request.h"

namespace ddptrain {
namespace {

// A request as a number: 0 for nothing, 1 for a checkpoint, 1 + signal for the end. A larger number includes a smaller.

double code_of(const Request& request) {
  if (request.end_signal) return 1.0 + *request.end_signal;
  return request.checkpoint ? 1.0 : 0.0;
}

Request request_of(double code) {
  Request request;
  request.checkpoint = code > 0.0;
  if (code > 1.0) request.end_signal = static_cast<int>(code - 1.0);
  return request;
}

}  // namespace

Request request_of_rank(const SignalRequests* signals, bool checkpoint_is_due) {
  Request request;
  request.checkpoint = checkpoint_is_due || (signals != nullptr && signals->checkpoint());
  const int end = signals != nullptr ? SignalRequests::end() : 0;
  if (end != 0) request.end_signal = end;
  return request;
}

Request agree(const Request& mine, const World& world, const std::function<void()>& progress) {
  return request_of(world.max(code_of(mine), progress));
}

}  // namespace ddptrain
