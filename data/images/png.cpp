#include <png.h>

#include <memory>

#include "data/images/gray_image.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {

GrayImage decode_png(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size) {
  png_image png = {};
  png.version = PNG_IMAGE_VERSION;
  const std::unique_ptr<png_image, void (*)(png_image*)> owner(&png, png_image_free);
  const auto damaged = [&] { usage_error("{}: damaged PNG file: {}", name, printable(png.message)); };
  if (png_image_begin_read_from_memory(&png, bytes.data(), bytes.size()) == 0) damaged();
  GrayImage image{png.height, png.width, {}};
  check_size(image.height, image.width);
  png.format = PNG_FORMAT_GRAY;
  image.pixels.resize(PNG_IMAGE_SIZE(png));
  const png_color black = {0, 0, 0};
  if (png_image_finish_read(&png, &black, image.pixels.data(), 0, nullptr) == 0) damaged();
  return image;
}

}  // namespace ddptrain
