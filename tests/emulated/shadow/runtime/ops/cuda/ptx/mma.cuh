#pragma once

#include <array>

#include "tests/emulated/device.h"

/// Those of runtime/ops/cuda/ptx/mma.cuh that emulated kernels use.

namespace ddptrain::cuda {

inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(static_cast<const char*>(pointer) - emulated::Block::current().shared_memory());
}
inline char* dynamic_shared_memory() { return emulated::Block::current().shared_memory(); }
inline uint4 load_shared(std::uint32_t address) {
  if (address % 16 != 0) emulated::Block::current().fail("16 bytes of shared memory are not aligned");
  uint4 x;
  std::memcpy(&x, emulated::Block::current().shared_memory() + address, 16);
  return x;
}
inline int uniform(int x) { return emulated::Block::current().exchange(x)[0]; }

inline float2 unpack_bf16(std::uint32_t pair) {
  const std::uint32_t bits[2] = {pair << 16, pair & 0xFFFF0000u};
  float2 values;
  std::memcpy(&values.x, &bits[0], 4);
  std::memcpy(&values.y, &bits[1], 4);
  return values;
}
inline std::uint32_t pack_bf16(float low, float high) {
  const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
  std::uint32_t bits;
  std::memcpy(&bits, &pair, 4);
  return bits;
}

inline std::uint32_t max_bf16(std::uint32_t a, std::uint32_t b) {
  const float2 x = unpack_bf16(a), y = unpack_bf16(b);
  return pack_bf16(std::fmax(x.x, y.x), std::fmax(x.y, y.y));
}

/// Where this lane's two elements of matrix i lie.
inline char* matrix_elements(const std::vector<std::uint32_t>& rows, std::size_t i) {
  const auto lane = static_cast<std::size_t>(threadIdx.x % 32);
  return emulated::Block::current().shared_memory() + rows[8 * i + lane / 4] + lane % 4 * 4;
}
inline void ldmatrix_x4(std::uint32_t (&r)[4], std::uint32_t address) {
  const auto rows = emulated::Block::current().exchange(address);
  for (std::size_t i = 0; i < 4; ++i) std::memcpy(&r[i], matrix_elements(rows, i), 4);
  emulated::Block::current().meet_warp();
}
/// Other lanes see what it has written after __syncwarp().
inline void stmatrix_x4(std::uint32_t address, const std::uint32_t (&r)[4]) {
  const auto rows = emulated::Block::current().exchange(address);
  for (std::size_t i = 0; i < 4; ++i) {
    std::memcpy(matrix_elements(rows, i), &r[i], 4);
    emulated::Block::current().note_write(matrix_elements(rows, i));
  }
}
inline void ldmatrix_x4_transposed(std::uint32_t (&r)[4], std::uint32_t address) {
  const auto rows = emulated::Block::current().exchange(address);
  const auto lane = static_cast<std::size_t>(threadIdx.x % 32);
  for (std::size_t i = 0; i < 4; ++i) {
    for (std::size_t half = 0; half < 2; ++half) {
      const char* row = emulated::Block::current().shared_memory() + rows[8 * i + lane % 4 * 2 + half];
      std::memcpy(reinterpret_cast<char*>(&r[i]) + 2 * half, row + lane / 4 * 2, 2);
    }
  }
  emulated::Block::current().meet_warp();
}

/// Element k of row or column `index` of an operand.
inline float operand_element(const std::vector<std::array<std::uint32_t, 6>>& lanes, int index, int k,
                             std::size_t word) {
  const float2 pair = unpack_bf16(lanes[static_cast<std::size_t>(index % 8 * 4 + k % 8 / 2)][word]);
  return k % 2 == 0 ? pair.x : pair.y;
}
inline void mma_m16n8k16(float (&d)[4], const std::uint32_t (&a)[4], std::uint32_t b0, std::uint32_t b1) {
  const auto lanes = emulated::Block::current().exchange(std::array<std::uint32_t, 6>{a[0], a[1], a[2], a[3], b0, b1});
  const int lane = threadIdx.x % 32;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
    for (int k = 0; k < 16; ++k) {
      d[i] += operand_element(lanes, row, k, static_cast<std::size_t>(row / 8 + k / 8 * 2)) *
              operand_element(lanes, column, k, static_cast<std::size_t>(4 + k / 8));
    }
  }
}

}  // namespace ddptrain::cuda
