#include "data/images/gray_image.h"

#include "tests/data/image_files.h"
#include "tests/support/says.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;

GrayImage decode(const Bytes& bytes) {
  return decode_image(bytes, "image", [](std::int64_t, std::int64_t) {});
}
std::string fault(const Bytes& bytes) {
  return error_message([&] { decode(bytes); });
}
Bytes bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

TEST(GrayImage, FormatsAreToldApartByContent) {
  for (const Bytes& file : {pgm(2, 3, kSixPixels), kGreyPng, kColourPng, kGreyJpeg}) {
    const GrayImage image = decode(file);
    EXPECT_EQ(image.height, 2);
    EXPECT_EQ(image.width, 3);
    ASSERT_EQ(image.pixels.size(), 6u);
    for (std::size_t i = 0; i < 6; ++i) EXPECT_NEAR(image.pixels[i], kSixPixels[i], 1) << i;  // a JPEG rounds
  }
  EXPECT_EQ(decode(kGreyPng).pixels, kSixPixels);
}

TEST(GrayImage, WhatIsTransparentIsBlack) { EXPECT_EQ(decode(kTransparentPng).pixels.back(), 0); }

TEST(GrayImage, PgmHasCommentsAndOtherLargestValues) {
  EXPECT_EQ(decode(bytes_of("P5# a\n 2 #b\n#c\n1\t3\n\x01\x03")).pixels, (Bytes{85, 255}));
  EXPECT_EQ(decode(bytes_of("P5 2 1 65535\n\x80\xff\xff\xff")).pixels, (Bytes{128, 255}));
}

TEST(GrayImage, FaultsAreNamed) {
  EXPECT_CONTAINS(fault(bytes_of("P2\n1 1\n255\n9")), "image: not an image of PNG, JPEG or binary PGM");
  EXPECT_CONTAINS(fault({}), "not an image");
  EXPECT_CONTAINS(fault(bytes_of("P5 3 2 255\n12345")), "truncated: 5 bytes of pixels, and its header promises 6");
  EXPECT_CONTAINS(fault(bytes_of("P5 3 2 255")), "truncated PGM header");
  EXPECT_CONTAINS(fault(bytes_of("P5 3 x")), "it has no height");
  EXPECT_CONTAINS(fault(bytes_of("P5 99999999999999999999 2 255\n")), "its width is above");
  EXPECT_CONTAINS(fault(bytes_of("P5 1 1 3\n\x04")), "pixel 0 is 4, above 3");
  for (const Bytes& whole : {kGreyPng, kGreyJpeg}) {
    for (std::size_t left = 4; left + 12 < whole.size(); left += 3) {
      const Bytes cut(whole.begin(), whole.begin() + static_cast<std::ptrdiff_t>(left));
      EXPECT_CONTAINS(fault(cut), "image: damaged ") << left;
    }
  }
}

TEST(GrayImage, SizesAreCheckedBeforePixelsAreDecoded) {
  const Bytes promises_a_gigabyte = bytes_of("P5 32768 32768 255\n");
  const auto refuse = [](std::int64_t height, std::int64_t width) { usage_error("{}x{} refused", height, width); };
  EXPECT_EQ(error_message([&] { decode_image(promises_a_gigabyte, "image", refuse); }), "32768x32768 refused");
  EXPECT_EQ(error_message([&] { decode_image(kGreyPng, "image", refuse); }), "2x3 refused");
  EXPECT_EQ(error_message([&] { decode_image(kGreyJpeg, "image", refuse); }), "2x3 refused");
}

}  // namespace
}  // namespace ddptrain
