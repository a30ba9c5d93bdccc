#include <vector>

#include "benchmarks/ddpbench/devices/gpu_copies.h"
#include "benchmarks/ddpbench/session.h"
#include "benchmarks/ddpbench/sizes.h"
#include "benchmarks/ddpbench/table.h"
#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

using Matrix = std::vector<std::vector<double>>;

template <class Value>
Matrix over_pairs(int count, Value value) {
  Matrix matrix(static_cast<std::size_t>(count), std::vector<double>(static_cast<std::size_t>(count)));
  for (int from = 0; from < count; ++from) {
    for (int to = 0; to < count; ++to) matrix[from][to] = value(from, to);
  }
  return matrix;
}

class P2pBench {
 public:
  P2pBench(const World& world, GpuCopies& copies, const P2pOptions& options)
      : world_(world), copies_(copies), options_(options) {}

  Json run() {
    describe();
    for (const bool peer : {false, true}) bandwidths(peer);
    for (const bool peer : {false, true}) latencies(peer);
    host();
    return results_;
  }

 private:
  void describe() {
    std::string text = "[P2P (Peer-to-Peer) GPU bandwidth and latency]\n";
    for (int gpu = 0; gpu < copies_.count(); ++gpu) {
      text += fmt::format("Device: {}, {}\n", gpu, copies_.name(gpu));
    }
    text += "P2P Connectivity Matrix\n";
    text += device_matrix("D\\D", over_pairs(copies_.count(), [this](int from, int to) {
                            return copies_.can_access(from, to) ? 1.0 : 0.0;
                          }));
    print(world_, text);
  }

  void bandwidths(bool peer) {
    copies_.set_peer_access(peer);
    const char* state = peer ? "Enabled" : "Disabled";
    show(fmt::format("Unidirectional P2P={} Bandwidth Matrix (GB/s)", state), "D\\D", "unidirectional", "bandwidth_gbs",
         peer, over_pairs(copies_.count(), [&](int from, int to) {
           return copies_.one_way(from, to, options_.bytes, options_.repeats);
         }));
    show(fmt::format("Bidirectional P2P={} Bandwidth Matrix (GB/s)", state), "D\\D", "bidirectional", "bandwidth_gbs",
         peer, over_pairs(copies_.count(), [&](int from, int to) {
           return copies_.both_ways(from, to, options_.bytes, options_.repeats);
         }));
  }

  void latencies(bool peer) {
    copies_.set_peer_access(peer);
    Matrix host = over_pairs(copies_.count(), [](int, int) { return 0.0; });
    const Matrix gpu = over_pairs(copies_.count(), [&](int from, int to) {
      const GpuCopies::Latency latency = copies_.latency(from, to, options_.latency_repeats);
      host[from][to] = latency.cpu_us;
      return latency.gpu_us;
    });
    show(fmt::format("P2P={} Latency Matrix (us)", peer ? "Enabled" : "Disabled"), "GPU", "latency", "latency_us", peer,
         gpu);
    show("", "CPU", "queueing", "latency_us", peer, host);
  }

  void host() {
    const Table table(
        {{"Device", 6}, {"host to device (GB/s)", 21}, {"device to host (GB/s)", 21}, {"both (GB/s)", 11}});
    print(world_, "Pinned host memory\n" + table.header());
    for (int gpu = 0; gpu < copies_.count(); ++gpu) {
      const GpuCopies::HostRates rates = copies_.host(gpu, options_.bytes, options_.repeats);
      print(world_, table.row({std::to_string(gpu), fmt::format("{:.2f}", rates.to_device),
                               fmt::format("{:.2f}", rates.from_device), fmt::format("{:.2f}", rates.both)}));
      const auto add = [&](const char* kind, double rate) {
        results_.push_back({{"kind", kind}, {"gpu", gpu}, {"bandwidth_gbs", rate}});
      };
      add("host_to_device", rates.to_device);
      add("device_to_host", rates.from_device);
      add("host_both_ways", rates.both);
    }
  }

  void show(const std::string& title, const std::string& corner, const char* kind, const char* unit, bool peer,
            const Matrix& matrix) {
    print(world_, (title.empty() ? "" : title + "\n") + device_matrix(corner, matrix));
    for (std::size_t from = 0; from < matrix.size(); ++from) {
      for (std::size_t to = 0; to < matrix.size(); ++to) {
        results_.push_back({{"kind", kind}, {"p2p", peer}, {"from", from}, {"to", to}, {unit, matrix[from][to]}});
      }
    }
  }

  const World& world_;
  GpuCopies& copies_;
  P2pOptions options_;
  Json results_ = Json::array();
};

}  // namespace

void run_p2p(const World& world, const CommonOptions& common, const P2pOptions& options) {
  if (world.size() > 1) usage_error("ddpbench p2p: one process drives all GPUs; start it without mpirun");
  if (options.bytes < 16) usage_error("--bytes {}: give 16 or more", options.bytes);
  const auto copies = common.device == "cpu" ? nullptr : make_gpu_copies();
  if (copies == nullptr) {
    usage_error("ddpbench p2p measures copies between GPUs: {}. ddpbench memory measures host memory.",
                built_with_cuda() ? "none is visible here" : "this program was built without CUDA");
  }
  const ResultFile file(world, common);
  P2pBench bench(world, *copies, options);
  Json gpus = Json::array();
  for (int gpu = 0; gpu < copies->count(); ++gpu) gpus.push_back(copies->name(gpu));
  Json result = {{"benchmark", "p2p"}, {"gpus", gpus}, {"bytes", options.bytes}, {"repeats", options.repeats}};
  result["results"] = bench.run();
  file.write(result);
}

}  // namespace ddptrain::bench
