#include "runtime/device/device.h"

namespace ddptrain {

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
