#pragma once

#include <string>

#include "tests/data/idx_files.h"

namespace ddptrain::tests {

inline Bytes from_hex(const std::string& text) {
  Bytes bytes;
  for (std::size_t i = 0; i < text.size(); i += 2) {
    bytes.push_back(static_cast<std::uint8_t>(std::stoi(text.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

/// Of 3x2 pixels each: 0, 51, 102; 153, 204, 255 (that of kTransparentPng with a last pixel that is transparent).
inline const Bytes kSixPixels = {0, 51, 102, 153, 204, 255};
inline const Bytes kGreyPng = from_hex(
    "89504e470d0a1a0a0000000d4948445200000003000000020800000000b81f39c60000001049444154789c63643036669879e63f0006a302cc"
    "d6"
    "1205460000000049454e44ae426082");
inline const Bytes kColourPng = from_hex(
    "89504e470d0a1a0a0000000d49484452000000030000000208020000001216f14d0000001d49444154789c6364606030363636363666983973"
    "e6"
    "993367feffff0f00309108603fba347a0000000049454e44ae426082");
inline const Bytes kTransparentPng = from_hex(
    "89504e470d0a1a0a0000000d4948445200000003000000020804000000377dae910000001649444154789c6364f86fcc60ccc030f3ff99ffff"
    "19"
    "0020c805c93011b2380000000049454e44ae426082");
inline const Bytes kGreyJpeg = from_hex(
    "ffd8ffe000104a46494600010100000100010000ffdb0043000201010101010201010102020202020403020202020504040304060506060605"
    "060606"
    "070908060709070606080b08090a0a0a0a0a06080b0c0b0a0c090a0a0affc0000b080002000301011100ffc400140001000000000000000000"
    "000000"
    "00000009ffc4001f1000000309000000000000000000000000000208050607182835465263ffda0008010100003f0058d1aa2b46f2bce5525c"
    "32b297"
    "03676c6e23ffd9");

inline Bytes pgm(int height, int width, const Bytes& pixels) {
  const std::string head = fmt::format("P5\n{} {}\n255\n", width, height);
  Bytes file(head.begin(), head.end());
  file.insert(file.end(), pixels.begin(), pixels.end());
  return file;
}

}  // namespace ddptrain::tests
