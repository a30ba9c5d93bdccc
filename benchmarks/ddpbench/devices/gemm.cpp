#include <algorithm>
#include <cmath>
#include <vector>

#include "benchmarks/ddpbench/fill_random.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/core/error.h"
#include "runtime/ops/linear.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain::bench {
namespace {

/// y [m, n] = x [m, k] weight^T [n, k].
struct Shape3 {
  std::string name;
  std::int64_t m = 0;
  std::int64_t n = 0;
  std::int64_t k = 0;
};

/// The cube and the linear layers of a GPT-2 block and head.
std::vector<Shape3> shapes_of(const GemmOptions& options, DeviceKind kind) {
  const bool gpu = kind == DeviceKind::cuda;
  const auto or_default = [gpu](std::int64_t value, std::int64_t on_gpu, std::int64_t on_cpu) {
    return value != 0 ? value : gpu ? on_gpu : on_cpu;
  };
  const std::int64_t cube = or_default(options.cube, 8192, 768);
  const std::int64_t tokens = or_default(options.tokens, 32768, 256);
  const std::int64_t width = or_default(options.width, 768, 256);
  const std::int64_t vocabulary = or_default(options.vocabulary, 50304, 4096);
  return {{"cube", cube, cube, cube},
          {"attention in", tokens, 3 * width, width},
          {"attention out", tokens, width, width},
          {"feed-forward in", tokens, 4 * width, width},
          {"feed-forward out", tokens, width, 4 * width},
          {"head", tokens, vocabulary, width}};
}

struct GemmRate {
  double seconds = 0.0;  ///< Time of a pass: median over rounds, mean over ranks.
  double flops = 0.0;    ///< FLOP/s per rank, from `seconds`.
  double best = 0.0;     ///< FLOP/s of the fastest round.
};

class GemmBench {
 public:
  GemmBench(const World& world, Device& device, const GemmOptions& options, double min_seconds)
      : world_(world), device_(device), options_(options), min_seconds_(min_seconds) {}

  GemmRate measure(const Shape3& shape, bool backward) {
    const DType dtype = device_.dtype();
    const Shape x_shape = {shape.m, shape.k}, w_shape = {shape.n, shape.k}, y_shape = {shape.m, shape.n};
    const Buffer x = device_.allocate(dtype, x_shape);
    const Buffer w = device_.allocate(dtype, w_shape);
    const Buffer y = device_.allocate(dtype, y_shape);
    const Buffer dx = device_.allocate(dtype, backward ? x_shape : Shape{1});
    const Buffer dw = device_.allocate(dtype, backward ? w_shape : Shape{1});
    fill_random(device_, x.view(dtype, x_shape), 1.0, 1);
    fill_random(device_, w.view(dtype, w_shape), 1.0 / std::sqrt(static_cast<double>(shape.k)), 2);
    if (backward) fill_random(device_, y.view(dtype, y_shape), 1.0, 3);
    const auto pass = [&] {
      if (backward) {
        device_.get<LinearOps>().linear_backward(x.view(dtype, x_shape), w.view(dtype, w_shape), y.view(dtype, y_shape),
                                                 dx.view(dtype, x_shape), dw.view(dtype, w_shape), {}, false);
      } else {
        device_.get<LinearOps>().linear(x.view(dtype, x_shape), w.view(dtype, w_shape), {}, y.view(dtype, y_shape));
      }
    };
    const double flop = (backward ? 4.0 : 2.0) * static_cast<double>(shape.m * shape.n) * static_cast<double>(shape.k);
    return rate(flop, pass);
  }

 private:
  GemmRate rate(double flop, const std::function<void()>& pass) {
    pass();
    const double once = world_.max(seconds_of(world_, device_, pass));
    const int passes = std::clamp(static_cast<int>(options_.seconds / once), 1, 100'000);
    std::vector<double> seconds;
    for (Rounds rounds(world_, options_.rounds, min_seconds_); rounds.next();) {
      const double all = seconds_of(world_, device_, [&] {
        for (int i = 0; i < passes; ++i) pass();
      });
      seconds.push_back(mean_over_ranks(world_, all / passes));
    }
    const double middle = median(seconds);
    return {middle, flop / middle, flop / *std::min_element(seconds.begin(), seconds.end())};
  }

  const World& world_;
  Device& device_;
  GemmOptions options_;
  double min_seconds_;
};

}  // namespace

void run_gemm(const World& world, const CommonOptions& common, const GemmOptions& options) {
  const ResultFile file(world, common);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  const auto device = make_device(world, common, kind, choose_precision(options.precision, kind));
  SensorLog sensors(world, *device);
  GemmBench bench(world, *device, options, common.min_seconds);
  const auto [peak, peak_source] = device->peak();
  Json result = {{"benchmark", "gemm"},
                 {"device", device->name()},
                 {"ranks_per_gpu", device->options().ranks},
                 {"precision", name_of(device->precision())},
                 {"ranks", world.size()},
                 {"peak_tflops", peak > 0.0 ? Json(peak / 1e12) : Json(nullptr)},
                 {"peak_source", peak_source},
                 {"results", Json::array()}};
  print(world, fmt::format("# matrix products of random numbers, {}, {} at once, {}\n", name_of(device->precision()),
                           ranks_on_nodes(world), device->name()));
  const Table table({{"product\n", 16},
                     {"pass\n", 8},
                     {"m\n", 7},
                     {"n\n", 7},
                     {"k\n", 7},
                     {"time\n(us)", 10},
                     {"rate\n(TFLOP/s)", 9},
                     {"best\n(TFLOP/s)", 9},
                     {"of peak\n", 7}});
  print(world, table.header());
  for (const Shape3& shape : shapes_of(options, kind)) {
    for (const bool backward : {false, true}) {
      const GemmRate rate = bench.measure(shape, backward);
      const char* pass = backward ? "backward" : "forward";
      print(world, table.row({shape.name, pass, std::to_string(shape.m), std::to_string(shape.n),
                              std::to_string(shape.k), microseconds(rate.seconds),
                              fmt::format("{:.4g}", rate.flops / 1e12), fmt::format("{:.4g}", rate.best / 1e12),
                              peak > 0.0 ? fmt::format("{:.1f}%", 100.0 * rate.flops / peak) : "n/a"}));
      result["results"].push_back({{"product", shape.name},
                                   {"pass", pass},
                                   {"m", shape.m},
                                   {"n", shape.n},
                                   {"k", shape.k},
                                   {"time_us", 1e6 * rate.seconds},
                                   {"rate_tflops", rate.flops / 1e12},
                                   {"best_tflops", rate.best / 1e12},
                                   {"share_of_peak", peak > 0.0 ? Json(rate.flops / peak) : Json(nullptr)}});
    }
  }
  sensors.tell(result);
  file.write(result);
}

}  // namespace ddptrain::bench
