#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define DDP_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define DDP_HOST_DEVICE inline
#endif

namespace ddptrain {

struct Philox {
  std::uint32_t word[4];
};

/// Philox4x32, the counter-based generator of Salmon et al., "Parallel random numbers: as easy as 1, 2, 3"
/// (SC 2011): four random words that depend on counter and key alone. Ten rounds are its authors' recommendation, seven
/// the fewest that pass BigCrush.
template <int kRounds = 10>
DDP_HOST_DEVICE Philox philox(std::uint32_t c0, std::uint32_t c1, std::uint32_t c2, std::uint32_t c3,
                              std::uint64_t key) {
  auto k0 = static_cast<std::uint32_t>(key);
  auto k1 = static_cast<std::uint32_t>(key >> 32);
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t p0 = static_cast<std::uint64_t>(0xD2511F53u) * c0;
    const std::uint64_t p1 = static_cast<std::uint64_t>(0xCD9E8D57u) * c2;
    c0 = static_cast<std::uint32_t>(p1 >> 32) ^ c1 ^ k0;
    c2 = static_cast<std::uint32_t>(p0 >> 32) ^ c3 ^ k1;
    c1 = static_cast<std::uint32_t>(p1);
    c3 = static_cast<std::uint32_t>(p0);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{c0, c1, c2, c3}};
}

/// Uniform in [0, 1) from 32 random bits.
DDP_HOST_DEVICE float uniform01(std::uint32_t bits) { return static_cast<float>(bits >> 8) * (1.0f / 16777216.0f); }

/// Where feature f of a sample finds its 15 random bits, the low ones of half-word `lane` (0 to 7) of Philox call
/// `call`. Within every 64 features the eight that share a call are the ones that one thread of a tensor-core tile
/// holds.
struct DropoutSlot {
  std::uint32_t call;
  std::uint32_t lane;
};

DDP_HOST_DEVICE DropoutSlot dropout_slot(std::uint32_t f) {
  return {(f / 64) * 8 + ((f % 64) / 32) * 4 + (f % 8) / 2, ((f / 8) % 4) * 2 + f % 2};
}

/// 15 bits, so that two comparisons fit one 32-bit subtraction.
DDP_HOST_DEVICE std::uint32_t random_bits(const Philox& random, std::uint32_t lane) {
  return (random.word[lane / 2] >> (16 * (lane % 2))) & 0x7FFFu;
}

}  // namespace ddptrain
