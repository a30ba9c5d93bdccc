// jpeglib.h needs the types of stdio.h before it.
#include <cstdio>

#include <jpeglib.h>

#include <array>
#include <csetjmp>
#include <memory>

#include "data/images/gray_image.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// libjpeg leaves by longjmp, over no object with a destructor.
struct Errors {
  jpeg_error_mgr base = {};
  std::jmp_buf leave = {};
  std::array<char, JMSG_LENGTH_MAX> message = {};
};

[[noreturn]] void leave_on_error(j_common_ptr jpeg) {
  auto* const errors = reinterpret_cast<Errors*>(jpeg->err);
  (*jpeg->err->format_message)(jpeg, errors->message.data());
  std::longjmp(errors->leave, 1);
}

/// Warnings are of damaged data.
void leave_on_warning(j_common_ptr jpeg, int level) {
  if (level < 0) leave_on_error(jpeg);
}

bool read_header(jpeg_decompress_struct& jpeg, Errors& errors, std::span<const std::uint8_t> bytes) {
  if (setjmp(errors.leave) != 0) return false;
  jpeg_create_decompress(&jpeg);
  jpeg_mem_src(&jpeg, bytes.data(), bytes.size());
  jpeg_read_header(&jpeg, TRUE);
  return true;
}

bool read_pixels(jpeg_decompress_struct& jpeg, Errors& errors, std::uint8_t* pixels) {
  if (setjmp(errors.leave) != 0) return false;
  jpeg.out_color_space = JCS_GRAYSCALE;
  jpeg_start_decompress(&jpeg);
  while (jpeg.output_scanline < jpeg.output_height) {
    JSAMPROW row = pixels + static_cast<std::size_t>(jpeg.output_scanline) * jpeg.output_width;
    jpeg_read_scanlines(&jpeg, &row, 1);
  }
  jpeg_finish_decompress(&jpeg);
  return true;
}

}  // namespace

GrayImage decode_jpeg(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size) {
  Errors errors;
  jpeg_decompress_struct jpeg = {};
  jpeg.err = jpeg_std_error(&errors.base);
  errors.base.error_exit = leave_on_error;
  errors.base.emit_message = leave_on_warning;
  const std::unique_ptr<jpeg_decompress_struct, void (*)(jpeg_decompress_struct*)> owner(
      &jpeg, [](jpeg_decompress_struct* made) { jpeg_destroy_decompress(made); });
  const auto damaged = [&] { usage_error("{}: damaged JPEG file: {}", name, printable(errors.message.data())); };
  if (!read_header(jpeg, errors, bytes)) damaged();
  GrayImage image{jpeg.image_height, jpeg.image_width, {}};
  check_size(image.height, image.width);
  image.pixels.resize(static_cast<std::size_t>(image.height * image.width));
  if (!read_pixels(jpeg, errors, image.pixels.data())) damaged();
  return image;
}

}  // namespace ddptrain
