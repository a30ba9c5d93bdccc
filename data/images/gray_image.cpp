#include "data/images/gray_image.h"

#include <algorithm>
#include <string_view>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

using Bytes = std::span<const std::uint8_t>;

bool begins_with(Bytes bytes, std::string_view start) {
  return bytes.size() >= start.size() && std::equal(start.begin(), start.end(), bytes.begin(),
                                                    [](char a, int b) { return static_cast<unsigned char>(a) == b; });
}

/// The header of a PGM file: numbers between spaces and comments.
class PgmHeader {
 public:
  PgmHeader(Bytes bytes, const std::string& name) : bytes_(bytes), name_(name) {}

  std::int64_t number(const char* what, std::int64_t most) {
    skip_space();
    std::int64_t value = 0;
    const std::size_t begin = at_;
    for (; at_ < bytes_.size() && bytes_[at_] >= '0' && bytes_[at_] <= '9'; ++at_) {
      value = 10 * value + (bytes_[at_] - '0');
      if (value > most) usage_error("{}: damaged PGM header: its {} is above {}", name_, what, most);
    }
    if (at_ == begin || value == 0) usage_error("{}: damaged PGM header: it has no {}", name_, what);
    return value;
  }
  /// What follows the header and one space.
  Bytes rest() {
    if (at_ >= bytes_.size() || !is_space(bytes_[at_])) usage_error("{}: truncated PGM header", name_);
    return bytes_.subspan(at_ + 1);
  }

 private:
  static bool is_space(std::uint8_t c) { return c == ' ' || (c >= '\t' && c <= '\r'); }
  void skip_space() {
    while (at_ < bytes_.size() && (is_space(bytes_[at_]) || bytes_[at_] == '#')) {
      if (bytes_[at_] == '#')
        at_ = std::find(bytes_.begin() + static_cast<std::ptrdiff_t>(at_), bytes_.end(), '\n') - bytes_.begin();
      if (at_ < bytes_.size()) ++at_;
    }
  }

  Bytes bytes_;
  const std::string& name_;
  std::size_t at_ = 2;  // behind P5
};

}  // namespace

GrayImage decode_pgm(Bytes bytes, const std::string& name, const CheckImageSize& check_size) {
  constexpr std::int64_t kMost = 1 << 20;
  PgmHeader header(bytes, name);
  GrayImage image;
  image.width = header.number("width", kMost);
  image.height = header.number("height", kMost);
  const std::int64_t white = header.number("largest value", 65535);
  const Bytes values = header.rest();
  check_size(image.height, image.width);
  const auto pixels = static_cast<std::size_t>(image.height * image.width);
  const std::size_t bytes_of_one = white > 255 ? 2 : 1;
  if (values.size() < pixels * bytes_of_one) {
    usage_error("{}: truncated: {} bytes of pixels, and its header promises {}", name, values.size(),
                pixels * bytes_of_one);
  }
  image.pixels.resize(pixels);
  for (std::size_t i = 0; i < pixels; ++i) {
    std::int64_t value = values[i * bytes_of_one];
    if (bytes_of_one == 2) value = 256 * value + values[2 * i + 1];
    if (value > white) usage_error("{}: damaged: pixel {} is {}, above {}", name, i, value, white);
    image.pixels[i] = static_cast<std::uint8_t>((255 * value + white / 2) / white);
  }
  return image;
}

GrayImage decode_image(Bytes bytes, const std::string& name, const CheckImageSize& check_size) {
  if (begins_with(bytes, "P5")) return decode_pgm(bytes, name, check_size);
  if (begins_with(bytes, "\x89PNG")) return decode_png(bytes, name, check_size);
  if (begins_with(bytes, "\xff\xd8\xff")) return decode_jpeg(bytes, name, check_size);
  usage_error("{}: not an image of PNG, JPEG or binary PGM (P5)", name);
}

}  // namespace ddptrain
