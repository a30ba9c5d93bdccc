#include <algorithm>
#include <cmath>
#include <optional>

#include "benchmarks/ddpbench/devices/stream_clock.h"
#include "benchmarks/ddpbench/fill_random.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/sizes.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/linear.h"
#include "runtime/train/measure/estimate.h"

namespace ddptrain::bench {
namespace {

/// Fills in the defaults that depend on the device.
OverlapOptions with_defaults(OverlapOptions options, DeviceKind kind) {
  const bool gpu = kind == DeviceKind::cuda;
  if (options.width == 0) options.width = gpu ? 4096 : 256;
  if (options.tokens == 0) options.tokens = gpu ? 8192 : 256;
  return options;
}

/// A load like the backward pass of a deep network: per layer, the two matrix products of a linear layer and a pass
/// over the memory of its activation. The weight gradient of layer l fills the next part of the gradient buffer.
class BackwardLoad {
 public:
  BackwardLoad(Device& device, const OverlapOptions& options, const Tensor& gradients)
      : device_(device), options_(options), gradients_(gradients) {
    const Shape square = {options.width, options.width};
    const Shape activations = {options.tokens, options.width};
    const DType dtype = device.dtype();
    for (Buffer* buffer : {&x_, &first_, &even_, &odd_}) *buffer = device.allocate(dtype, activations);
    weight_ = device.allocate(dtype, square);
    bias_ = device.allocate(dtype, {options.width});
    fill_random(device, x_.view(dtype, activations), 1.0, 1);
    fill_random(device, first_.view(dtype, activations), 1.0, 2);
    fill_random(device, weight_.view(dtype, square), std::sqrt(3.0 / static_cast<double>(options.width)), 3);
  }

  void layer(std::int64_t index) {
    const DType dtype = device_.dtype();
    const Shape activations = {options_.tokens, options_.width};
    const Tensor dy = (index == 0 ? first_ : index % 2 == 0 ? even_ : odd_).view(dtype, activations);
    const Tensor dx = (index % 2 == 0 ? odd_ : even_).view(dtype, activations);
    const Tensor x = x_.view(dtype, activations);
    device_.get<LinearOps>().linear_backward(x, weight_.view(dtype, {options_.width, options_.width}), dy, dx,
                                             gradient(index), {}, false);
    device_.get<ActivationOps>().bias_relu_backward(x, dx, 1.0f, bias_.view(dtype, {options_.width}), false);
  }

 private:
  Tensor gradient(std::int64_t index) const {
    const auto size = static_cast<std::size_t>(options_.width * options_.width) * size_of(gradients_.dtype);
    return {gradients_.as<char>() + static_cast<std::size_t>(index) * size,
            gradients_.dtype,
            {options_.width, options_.width}};
  }

  Device& device_;
  OverlapOptions options_;
  Tensor gradients_;
  Buffer x_, first_, even_, odd_, weight_, bias_;
};

struct Times {
  double compute = 0.0;  ///< Seconds until the load is done, ...
  double all = 0.0;      ///< ... and until the all-reduces are done, too.
};

class OverlapBench {
 public:
  OverlapBench(const World& world, Device& device, Communicator& communicator, const OverlapOptions& options,
               double min_seconds)
      : world_(world),
        device_(device),
        communicator_(communicator),
        options_(options),
        min_seconds_(min_seconds),
        memory_(communicator.allocate(bytes())),
        gradients_(memory_.view(device.dtype(), {elements()})),
        load_(device, options, gradients_),
        clock_(make_stream_clock(device, 3)) {}

  std::int64_t elements() const { return options_.layers * options_.width * options_.width; }
  std::size_t bytes() const { return static_cast<std::size_t>(elements()) * size_of(device_.dtype()); }

  struct Result {
    double compute = 0.0;        ///< Seconds of the load alone.
    double communication = 0.0;  ///< Seconds of the all-reduces alone.
    Times together;
  };

  /// Medians over rounds. A round measures all three in turn, each on its slowest rank.
  Result measure(std::size_t bucket_bytes) {
    std::vector<double> compute, communication, beside, together;
    for (Rounds rounds(world_, options_.rounds + 1, min_seconds_); rounds.next();) {
      const Times alone = once(true, 0);
      const Times silent = once(false, bucket_bytes);
      const Times both = once(true, bucket_bytes);
      if (rounds.done() == 0) continue;  // warm-up
      compute.push_back(alone.compute);
      communication.push_back(silent.all);
      beside.push_back(both.compute);
      together.push_back(both.all);
    }
    return {median(compute), median(communication), {median(beside), median(together)}};
  }

 private:
  /// Bucket size 0: no all-reduces.
  Times once(bool compute, std::size_t bucket_bytes) {
    device_.zero(gradients_.data, gradients_.bytes(), device_.compute_stream());  // sums of sums would overflow
    seconds_of(world_, device_, [&] { run(compute, bucket_bytes); });
    return {world_.max(clock_->seconds(0, 1)), world_.max(clock_->seconds(0, 2))};
  }

  /// Queues the load (`compute`) and starts each bucket's all-reduce as soon as its gradients are complete.
  void run(bool compute, std::size_t bucket_bytes) {
    const Stream stream = device_.compute_stream();
    done_ = 0;
    last_.reset();
    clock_->mark(0, stream);
    device_.set_progress([this] {
      if (last_) communicator_.test(*last_);
    });
    for (std::int64_t layer = 0; layer < options_.layers; ++layer) {
      if (compute) load_.layer(layer);
      if (bucket_bytes > 0) start_buckets((layer + 1) * options_.width * options_.width, bucket_bytes);
    }
    clock_->mark(1, stream);
    device_.set_progress({});
    if (last_) communicator_.wait(*last_);
    device_.wait_for(stream, device_.communication_stream());
    clock_->mark(2, stream);
  }

  /// Starts the all-reduces of the buckets below element `complete`; at the end of backward, those of the remaining
  /// buckets.
  void start_buckets(std::int64_t complete, std::size_t bucket_bytes) {
    const auto bucket = static_cast<std::int64_t>(bucket_bytes / size_of(gradients_.dtype));
    while (done_ < complete && (done_ + bucket <= complete || complete == elements())) {
      const std::int64_t count = std::min(bucket, complete - done_);
      const Stream stream = device_.communication_stream();
      device_.wait_for(stream, device_.compute_stream());
      last_ = communicator_.all_reduce_sum(gradients_.stretch(done_, count), stream);
      done_ += count;
    }
  }

  const World& world_;
  Device& device_;
  Communicator& communicator_;
  OverlapOptions options_;
  double min_seconds_;
  Buffer memory_;
  Tensor gradients_;
  BackwardLoad load_;
  std::unique_ptr<StreamClock> clock_;
  std::int64_t done_ = 0;  ///< Number of elements whose all-reduce has started.
  std::optional<Communicator::Ticket> last_;
};

std::vector<std::uint64_t> bucket_sizes(const OverlapOptions& options, std::uint64_t all) {
  std::vector<std::uint64_t> sizes = options.buckets;
  if (sizes.empty()) {
    for (std::uint64_t size = std::uint64_t{256} << 10; size < all; size *= 4) sizes.push_back(size);
    sizes.push_back(all);
  }
  for (std::uint64_t& size : sizes) {
    if (size < 4) usage_error("--buckets {}: give sizes of 4 bytes or more", size);
    size = std::min(size, all);
  }
  return sizes;
}

std::string milliseconds(double seconds) { return fmt::format("{:.3f}", 1e3 * seconds); }
std::string percent(double share) { return fmt::format("{:.1f}%", 100.0 * share); }

Table overlap_table() {
  return Table({{"bucket", 12},
                {"buckets", 7},
                {"compute\n(ms)", 9},
                {"communication\n(ms)", 13},
                {"together\n(ms)", 9},
                {"exposed\n(ms)", 9},
                {"exposed\n(of comm.)", 10},
                {"slow-down\n(of compute)", 12}});
}

}  // namespace

void run_overlap(const World& world, const CommonOptions& common, const OverlapOptions& given) {
  require_ranks(world, "ddpbench overlap");
  const ResultFile file(world, common);
  const DeviceKind kind = choose_device(world, common.device, common.share_gpu);
  require_gpu(kind, given.symmetric, "--symmetric");
  require_gpu(kind, given.comm_ctas > 0, "--comm-ctas");
  const OverlapOptions options = with_defaults(given, kind);
  const auto device = make_device(world, common, kind, choose_precision("auto", kind));
  const auto communicator =
      make_communicator(world, *device, {.symmetric = options.symmetric, .comm_ctas = options.comm_ctas});
  SensorLog sensors(world, *device);
  OverlapBench bench(world, *device, *communicator, options, common.min_seconds);
  const auto buckets = bucket_sizes(options, bench.bytes());

  print(world, fmt::format("# {} layers of width {}, {} tokens, {} of {} gradients, {}, {}, {}\n", options.layers,
                           options.width, options.tokens, format_size(bench.bytes()), name_of(device->dtype()),
                           library_version(*communicator), ranks_on_nodes(world), device->name()));
  Json result = {{"benchmark", "overlap"},
                 {"library", library_version(*communicator)},
                 {"device", device->name()},
                 {"ranks_per_gpu", device->options().ranks},
                 {"precision", name_of(device->precision())},
                 {"ranks", world.size()},
                 {"nodes", world.nodes()},
                 {"layers", options.layers},
                 {"width", options.width},
                 {"tokens", options.tokens},
                 {"gradient_bytes", bench.bytes()},
                 {"comm_ctas", options.comm_ctas},
                 {"results", Json::array()}};
  const Table table = overlap_table();
  print(world, table.header());
  for (const std::uint64_t bucket : buckets) {
    const OverlapBench::Result times = bench.measure(bucket);
    const double exposed = times.together.all - times.compute;
    const double share = exposed / times.communication;
    const double slow_down = times.together.compute / times.compute - 1.0;
    const std::uint64_t count = (bench.bytes() + bucket - 1) / bucket;
    print(world, table.row({format_size(bucket), std::to_string(count), milliseconds(times.compute),
                            milliseconds(times.communication), milliseconds(times.together.all), milliseconds(exposed),
                            percent(share), percent(slow_down)}));
    result["results"].push_back({{"bucket_bytes", bucket},
                                 {"buckets", count},
                                 {"compute_alone_us", 1e6 * times.compute},
                                 {"communication_alone_us", 1e6 * times.communication},
                                 {"together_us", 1e6 * times.together.all},
                                 {"exposed_us", 1e6 * exposed},
                                 {"exposed_of_communication", share},
                                 {"compute_beside_us", 1e6 * times.together.compute},
                                 {"compute_slow_down", slow_down}});
  }
  sensors.tell(result);
  file.write(result);
}

}  // namespace ddptrain::bench
