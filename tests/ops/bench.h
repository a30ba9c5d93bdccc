#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <deque>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/core/random.h"
#include "runtime/core/step.h"
#include "runtime/device/device.h"
#include "runtime/ops/image_batch.h"
#include "tests/support/values.h"

namespace ddptrain::tests {

constexpr float kEpsilon = 1e-5f;  ///< Of layer_norm and its relatives.

/// A device under test, the relative error that its precision may make, and how to make it.
struct DeviceCase {
  std::string name;
  DeviceKind kind = DeviceKind::cpu;
  Precision precision = Precision::fp32;
  double tolerance = 1e-5;
};

inline void PrintTo(const DeviceCase& test_case, std::ostream* out) { *out << test_case.name; }

inline std::vector<DeviceCase> device_cases() {
  return {{"cpu_fp32", DeviceKind::cpu, Precision::fp32, 1e-5},
          {"cuda_fp32", DeviceKind::cuda, Precision::fp32, 1e-5},
          {"cuda_tf32", DeviceKind::cuda, Precision::tf32, 2e-3},
          {"cuda_bf16", DeviceKind::cuda, Precision::bf16, 1.5e-2}};
}

inline std::unique_ptr<Device> make_device(const DeviceCase& test_case, int threads = 1) {
  DeviceOptions options;
  options.precision = test_case.precision;
  options.tune = test_case.name.ends_with("tuned");
  options.threads = threads;
  return test_case.kind == DeviceKind::cpu ? make_cpu_device(options) : make_cuda_device(options, 0);
}

/// Puts host values on a device and takes them back. `rounding` is the type to which values are rounded on their way,
/// so that an oracle in f64 sees what the device under test sees. Owns what it hands out.
class Bench {
 public:
  Bench(Device& device, DType rounding) : device_(device), rounding_(rounding) {}
  explicit Bench(Device& device) : Bench(device, device.dtype()) {}

  Device& device() const { return device_; }

  Tensor put(const Values& values, const Shape& shape) { return put_as(rounded(values), device_.dtype(), shape); }
  Tensor put_as(Values values, DType dtype, const Shape& shape) {
    EXPECT_EQ(values.size(), count(shape));
    const Tensor tensor = own(dtype, shape);
    std::vector<std::uint8_t> bytes(tensor.bytes());
    host_->convert(host_view(values), {bytes.data(), dtype, {tensor.size()}}, {});
    device_.copy_to_device(tensor.data, bytes.data(), bytes.size());
    return tensor;
  }
  /// f32 or f64, not rounded to the compute type first.
  Tensor put_master(const Values& values, const Shape& shape) {
    return put_as(values, master_dtype(device_.precision()), shape);
  }
  /// NaN everywhere, to show what an operation leaves unwritten.
  Tensor poisoned(const Shape& shape) { return put(Values(count(shape), std::nan("")), shape); }
  Tensor poisoned_bytes(const Shape& shape) { return put_bytes(std::vector<std::uint8_t>(count(shape), 0xEE), shape); }
  Tensor put_bytes(const std::vector<std::uint8_t>& bytes, const Shape& shape) {
    const Tensor tensor = own(DType::u8, shape);
    device_.copy_to_device(tensor.data, bytes.data(), bytes.size());
    return tensor;
  }
  template <class T>
  T* put_object(const T& object) {
    void* data = own(DType::u8, {static_cast<std::int64_t>(sizeof(T))}).data;
    device_.copy_to_device(data, &object, sizeof(T));
    return static_cast<T*>(data);
  }
  template <class T>
  T take_object(const T* data) const {
    T object;
    device_.copy_to_host(&object, data, sizeof(T));
    return object;
  }

  Values take(const Tensor& tensor) const {
    std::vector<std::uint8_t> bytes(tensor.bytes());
    device_.copy_to_host(bytes.data(), tensor.data, bytes.size());
    Values values(static_cast<std::size_t>(tensor.size()));
    if (tensor.dtype == DType::u8) {
      std::copy(bytes.begin(), bytes.end(), values.begin());
    } else {
      host_->convert({bytes.data(), tensor.dtype, {tensor.size()}}, host_view(values), {});
    }
    return values;
  }

  Values rounded(const Values& values) const {
    std::vector<std::uint8_t> bytes(values.size() * size_of(rounding_));
    const Tensor narrow{bytes.data(), rounding_, {static_cast<std::int64_t>(values.size())}};
    Values result = values;
    host_->convert(host_view(result), narrow, {});
    host_->convert(narrow, host_view(result), {});
    return result;
  }

 private:
  static std::size_t count(const Shape& shape) { return static_cast<std::size_t>(element_count(shape)); }
  static Tensor host_view(Values& values) {
    return {values.data(), DType::f64, {static_cast<std::int64_t>(values.size())}};
  }
  Tensor own(DType dtype, const Shape& shape) {
    buffers_.push_back(device_.allocate(dtype, shape));
    return buffers_.back().view(dtype, shape);
  }
  Device& device_;
  DType rounding_;
  std::unique_ptr<Device> host_ = make_cpu_device({Precision::fp64});
  std::deque<Buffer> buffers_;
};

/// A test on each of device_cases(); skipped without a GPU for it.
class DeviceTest : public ::testing::TestWithParam<DeviceCase> {
 protected:
  void SetUp() override {
    if (GetParam().kind == DeviceKind::cuda && cuda_device_count() == 0) GTEST_SKIP() << "no GPU on this machine";
    device_ = make_device(GetParam(), 2);
    bench_ = std::make_unique<Bench>(*device_);
  }
  void expect_close(const Tensor& out, const Values& expected) {
    EXPECT_LE(relative_error(bench_->take(out), expected), GetParam().tolerance);
  }

  std::unique_ptr<Device> device_;
  std::unique_ptr<Bench> bench_;
};

/// A data set and a batch of it on a device.
inline ImageBatch make_batch(Bench& bench, std::int64_t count, std::int64_t height, std::int64_t width,
                             std::int64_t classes, std::uint32_t first = 0, bool shuffle = true) {
  const std::int64_t size = 2 * count + 5 + first;
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(size * height * width));
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    pixels[i] = static_cast<std::uint8_t>(philox(static_cast<std::uint32_t>(i), 1, 2, 3, 4).word[0]);
  }
  std::vector<std::uint8_t> labels(static_cast<std::size_t>(size));
  for (std::size_t i = 0; i < labels.size(); ++i) {
    labels[i] = static_cast<std::uint8_t>(philox(static_cast<std::uint32_t>(i), 5, 6, 7, 8).word[0] % classes);
  }
  ImageBatch batch;
  batch.images = bench.put_bytes(pixels, {size, height, width});
  batch.labels = bench.put_bytes(labels, {size});
  batch.order = {77, static_cast<std::uint32_t>(size), 2, static_cast<std::uint32_t>(count), first, shuffle};
  batch.step = {bench.put_object(StepState{3}), 1};
  batch.count = count;
  return batch;
}

}  // namespace ddptrain::tests
