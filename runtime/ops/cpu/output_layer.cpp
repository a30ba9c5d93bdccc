#include "runtime/ops/output_layer.h"

namespace ddptrain {

std::unique_ptr<OutputLayerOps> OutputLayerOps::on_cpu(Device& device) {
  return std::make_unique<OutputLayerOps>(device);
}

}  // namespace ddptrain
