#include "benchmarks/ddpbench/session.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <vector>

#include "runtime/core/atomic_file.h"
#include "runtime/core/error.h"
#include "runtime/core/random.h"
#include "runtime/core/writable.h"

namespace ddptrain::bench {

ResultFile::ResultFile(const World& world, std::string path) {
  world.agree([&] {
    if (world.rank() != 0 || path.empty()) return;
    path_ = path;
    require_writable("--json", path_);
  });
}

void ResultFile::write(const Json& result) const {
  if (path_.empty()) return;
  write_file(path_, result.dump(2) + '\n');
}

std::string ranks_on_nodes(const World& world) {
  return fmt::format("{} rank{} on {} node{}", world.size(), world.size() == 1 ? "" : "s", world.nodes(),
                     world.nodes() == 1 ? "" : "s");
}

void print(const World& world, const std::string& text) {
  if (world.rank() != 0) return;
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::unique_ptr<Device> make_device(const World& world, DeviceKind kind, Precision precision, int threads) {
  std::unique_ptr<Device> device;
  DeviceOptions options;
  options.precision = precision;
  options.threads = threads;
  if (kind == DeviceKind::cuda) require_own_gpus(world, cuda_pci_bus_id(own_gpu(world)));
  world.agree([&] {
    device = kind == DeviceKind::cuda ? make_cuda_device(options, own_gpu(world)) : make_cpu_device(options);
  });
  return device;
}

Precision choose_precision(const std::string& name, DeviceKind kind) {
  if (name == "fp32") return Precision::fp32;
  if (name == "tf32") return Precision::tf32;
  if (name == "bf16") return Precision::bf16;
  return default_precision(kind);
}

void require_gpu(DeviceKind kind, bool given, const char* flag) {
  if (given && kind == DeviceKind::cpu) usage_error("{}: it is for GPUs; leave it out", flag);
}

void require_ranks(const World& world, const char* what) {
  if (world.size() > 1) return;
  usage_error("{} needs at least 2 ranks: start it with mpirun -np 2 --bind-to none ddpbench ...", what);
}

double seconds_of(const World& world, Device& device, const std::function<void()>& work) {
  device.synchronize();
  world.barrier();
  const auto start = std::chrono::steady_clock::now();
  work();
  device.synchronize();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double mean_over_ranks(const World& world, double value) { return world.sum(value) / world.size(); }

bool Rounds::next() {
  if (++done_ == 0) start_ = std::chrono::steady_clock::now();
  if (done_ < fewest_) return true;
  if (min_seconds_ == 0.0) return false;
  const double passed = std::chrono::duration<double>(std::chrono::steady_clock::now() - start_).count();
  return world_.max(passed) < min_seconds_;
}

void fill_random(Device& device, const Tensor& values, double bound, std::uint32_t seed) {
  constexpr std::int64_t kPart = std::int64_t{1} << 22;
  const Buffer staging = device.allocate(DType::f32, {std::min(kPart, values.size())});
  std::vector<float> host(static_cast<std::size_t>(std::min(kPart, values.size())));
  for (std::size_t i = 0; i < host.size(); ++i) {
    const Philox random = philox<7>(static_cast<std::uint32_t>(i), 0, 0, 0, seed);
    host[i] = static_cast<float>(bound * (2.0 * uniform01(random.word[0]) - 1.0));
  }
  device.copy_to_device(staging.data(), host.data(), host.size() * sizeof(float));
  for (std::int64_t begin = 0; begin < values.size(); begin += kPart) {  // parts repeat
    const std::int64_t count = std::min(kPart, values.size() - begin);
    const Tensor part{
        values.as<char>() + static_cast<std::size_t>(begin) * size_of(values.dtype), values.dtype, {count}};
    device.convert(staging.view(DType::f32, {count}), part, device.compute_stream());
  }
  device.synchronize();
}

}  // namespace ddptrain::bench
