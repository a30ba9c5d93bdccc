#include "runtime/device/device.h"

namespace ddptrain {

void Device::in_communication_stream(const std::function<void(Stream)>& work) {
  wait_for(communication_stream(), compute_stream());
  work(communication_stream());
  wait_for(compute_stream(), communication_stream());
}

void Device::record(Timeline& timeline, const std::function<void()>& work) {
  struct Recording {
    Timeline*& of_device;
    ~Recording() { of_device = nullptr; }
  };
  finish_unfinished();
  timeline_ = &timeline;
  const Recording recording{timeline_};
  work();
  finish_unfinished();
}

}  // namespace ddptrain
