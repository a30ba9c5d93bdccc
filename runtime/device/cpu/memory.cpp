#include <bit>
#include <cstring>
#include <new>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/core/text.h"
#include "runtime/device/cpu/cpu_device.h"

namespace ddptrain {

namespace {

constexpr std::align_val_t kAlignment{256};

/// An f64 value is first rounded to odd in f32, so that the rounding to bf16 is the only one that counts.
float to_odd_float(double value) {
  const auto rounded = static_cast<float>(value);
  auto bits = std::bit_cast<std::uint32_t>(rounded);
  const double back = rounded;
  if (back == value || value != value || (bits & 0x7F800000u) == 0x7F800000u) return rounded;
  if ((bits & 1u) == 0) bits += std::abs(back) < std::abs(value) ? 1u : -1u;
  return std::bit_cast<float>(bits);
}

template <class From, class To>
void convert_values(const Tensor& src, const Tensor& dst) {
  const From* from = src.as<From>();
  To* to = dst.as<To>();
  const std::int64_t count = src.size();
  for (std::int64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<From, To>) {
      to[i] = from[i];
    } else if constexpr (std::is_same_v<To, Bf16> && std::is_same_v<From, double>) {
      to[i] = to_bf16(to_odd_float(from[i]));
    } else if constexpr (std::is_same_v<To, Bf16>) {
      to[i] = to_bf16(from[i]);
    } else if constexpr (std::is_same_v<From, Bf16>) {
      to[i] = to_float(from[i]);
    } else {
      to[i] = static_cast<To>(from[i]);
    }
  }
}

template <class From>
void convert_from(const Tensor& src, const Tensor& dst) {
  switch (dst.dtype) {
    case DType::f64:
      convert_values<From, double>(src, dst);
      break;
    case DType::f32:
      convert_values<From, float>(src, dst);
      break;
    case DType::bf16:
      convert_values<From, Bf16>(src, dst);
      break;
    default:
      fail("convert: no conversion to {}", name_of(dst.dtype));
  }
}

}  // namespace

Buffer CpuDevice::allocate(std::size_t bytes) {
  void* data = ::operator new(bytes, kAlignment, std::nothrow);
  if (data == nullptr) throw OutOfMemory(fmt::format("the host has no {} of memory left", size_text(bytes)));
  std::memset(data, 0, bytes);
  return {data, bytes, [](void* memory) { ::operator delete(memory, kAlignment); }};
}

void CpuDevice::copy_to_host(void* host, const void* device, std::size_t bytes) {
  finish_unfinished();
  std::memcpy(host, device, bytes);
}

void CpuDevice::copy_to_device(void* device, const void* host, std::size_t bytes) {
  finish_unfinished();
  std::memcpy(device, host, bytes);
}

Buffer CpuDevice::allocate_pinned(std::size_t bytes) { return allocate(bytes); }

void CpuDevice::copy(void* to, const void* from, std::size_t bytes, Stream) {
  if (bytes > 0) std::memcpy(to, from, bytes);
}

std::unique_ptr<Event> CpuDevice::mark(Stream) {
  struct Past final : Event {
    bool done() override { return true; }
  };
  return std::make_unique<Past>();
}

void CpuDevice::zero(void* device, std::size_t bytes, Stream) { std::memset(device, 0, bytes); }

void CpuDevice::convert(const Tensor& src, const Tensor& dst, Stream) {
  DDP_CHECK(src.size() == dst.size(), "convert: {} elements into {}", src.size(), dst.size());
  switch (src.dtype) {
    case DType::f64:
      convert_from<double>(src, dst);
      break;
    case DType::f32:
      convert_from<float>(src, dst);
      break;
    case DType::bf16:
      convert_from<Bf16>(src, dst);
      break;
    default:
      fail("convert: no conversion from {}", name_of(src.dtype));
  }
}

}  // namespace ddptrain
