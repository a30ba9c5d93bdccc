#include "data/images/gray_image.h"
#include "runtime/core/error.h"

namespace ddptrain {

GrayImage decode_jpeg(std::span<const std::uint8_t>, const std::string& name, const CheckImageSize&) {
  usage_error("{}: this program was built without libjpeg. Install libjpeg-dev, as launch/setup does, and build again.",
              name);
}

}  // namespace ddptrain
