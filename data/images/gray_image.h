#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

namespace ddptrain {

/// A grey image in host memory.
struct GrayImage {
  std::int64_t height = 0;
  std::int64_t width = 0;
  std::vector<std::uint8_t> pixels;  ///< [height, width]; 0 is black.
};

/// Sees the size before pixels are decoded, and throws where it does not want an image of it.
using CheckImageSize = std::function<void(std::int64_t height, std::int64_t width)>;

/// Decodes a file's bytes: PGM (binary, P5), PNG or JPEG, told apart by content. Colours become grey, 16 bits become 8,
/// transparent pixels lie on black. UsageError, naming `name`, where the bytes are none of these or are damaged, or
/// the program was built without the library that PNG or JPEG needs.
GrayImage decode_image(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size);

/// By what it calls.
GrayImage decode_pgm(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size);
GrayImage decode_png(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size);
GrayImage decode_jpeg(std::span<const std::uint8_t> bytes, const std::string& name, const CheckImageSize& check_size);

}  // namespace ddptrain
