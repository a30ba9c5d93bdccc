#pragma once

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "runtime/comm/communicator.h"
#include "runtime/core/error.h"
#include "runtime/device/device.h"
#include "runtime/ops/optimizers/orthogonal.h"
#include "runtime/ops/reduction.h"
#include "tests/train/replay.h"

namespace ddptrain {

/// Host memory, conversions, and a log of what was asked for, of optimizers too. Graphs call again what they captured.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(bool graphs = false, Precision precision = Precision::fp32)
      : Device({.precision = precision}), graphs_(graphs) {
    attach<OptimizerOps>(std::make_shared<FakeOptimizer>(*this));
    attach<ReductionOps>(std::make_shared<FakeReduction>(*this));
    attach<OrthogonalOps>(std::make_shared<FakeOrthogonal>(*this));
  }

  std::vector<std::string> log;

  DeviceKind kind() const override { return told_kind; }
  std::string name() const override { return "fake"; }
  using Device::allocate;
  Buffer allocate(std::size_t bytes) override { return {std::calloc(bytes, 1), bytes, std::free}; }
  void copy_to_host(void* host, const void* device, std::size_t bytes) override { std::memcpy(host, device, bytes); }
  void copy_to_device(void* device, const void* host, std::size_t bytes) override { std::memcpy(device, host, bytes); }
  std::unique_ptr<Timeline> make_timeline() override { return nullptr; }
  const void* share_host_memory(const void* host, std::size_t) override { return host; }
  Buffer allocate_pinned(std::size_t bytes) override {
    Buffer buffer = allocate(bytes);
    pinned.insert(buffer.data());
    return buffer;
  }
  void copy(void* to, const void* from, std::size_t bytes, Stream) override { std::memcpy(to, from, bytes); }
  void wait_until(Stream later, const Event& event) override {
    log.push_back(fmt::format("{} waits for {}", name(later), static_cast<const Mark&>(event).text));
  }
  std::unique_ptr<Event> mark(Stream stream) override {
    auto mark = std::make_unique<Mark>();
    mark->text = fmt::format("'{}'", log.empty() ? name(stream) : log.back());
    return mark;
  }
  void zero(void* device, std::size_t bytes, Stream) override { std::memset(device, 0, bytes); }
  void convert(const Tensor& src, const Tensor& dst, Stream) override { host_->convert(src, dst, {}); }

  Stream compute_stream() override { return now_; }
  Stream communication_stream() override { return {&communication_}; }
  Stream exchange_stream(std::size_t index) override { return {&exchanges_.at(index)}; }
  void queue_in(Stream stream, const std::function<void()>& work) override {
    const Stream before = std::exchange(now_, stream);
    work();
    now_ = before;
  }
  void wait_for(Stream later, Stream earlier) override {
    log.push_back(fmt::format("{} waits for {}", name(later), name(earlier)));
  }
  void synchronize() override { finish_unfinished(); }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    if (!graphs_) return nullptr;
    capturing_ = true;
    work();
    capturing_ = false;
    log.push_back("captured");
    return std::make_unique<Replay>(work);
  }
  bool capturing() const { return capturing_; }
  std::string name(Stream stream) const {
    for (std::size_t i = 0; i < exchanges_.size(); ++i) {
      if (stream.handle == &exchanges_[i]) return fmt::format("exchange {}", i);
    }
    return stream.handle == &compute_ ? "compute" : "communication";
  }

  DeviceKind told_kind = DeviceKind::cpu;  ///< What kind() answers.
  std::size_t inbox = 0;                   ///< What OptimizerOps::inbox_bytes() answers.
  std::set<const void*> pinned;            ///< What allocate_pinned() has returned.
  std::vector<const void*> sums;           ///< Where ReductionOps::add_nodes() has written.

 private:
  /// Behind what was logged last.
  struct Mark final : Event {
    std::string text;
    bool done() override { return true; }
  };

  class FakeOptimizer final : public OptimizerOps {
   public:
    explicit FakeOptimizer(FakeDevice& device) : device_(device) {}

    void advance(StepState* state, std::uint32_t steps, Stream) override {
      if (!device_.capturing_) state->step += steps;
    }
    void update(const OptimizerSettings&, const UpdateSlice& slice, StepRef, Stream stream) override {
      const auto peers =
          std::count_if(slice.peer_weights.begin(), slice.peer_weights.end(), [](void* p) { return p != nullptr; });
      device_.log.push_back(fmt::format("update parameter {}{}{} on {}{}", parameters_of(slice),
                                        peers > 0 ? fmt::format(" and of {} peers", peers) : "",
                                        slice.trust_ratios != nullptr ? " by ratios" : "", device_.name(stream),
                                        slice.yields ? ", yields" : ""));
    }
    void add_momentum(const OptimizerSettings&, const UpdateSlice& slice, StepRef, Stream stream) override {
      device_.log.push_back(fmt::format("momentum of {} on {}", parameters_of(slice), device_.name(stream)));
    }
    void update_squares(const OptimizerSettings&, const UpdateSlice& slice, const std::uint32_t*, UpdateSquares*,
                        StepRef, Stream stream) override {
      device_.log.push_back(fmt::format("squares of {}update of {} on {}",
                                        slice.gradient_scale != nullptr ? "scaled " : "", parameters_of(slice),
                                        device_.name(stream)));
    }
    void trust_ratios(const UpdateSquares*, const std::uint32_t*, const Tensor& ratios, Stream stream) override {
      device_.log.push_back(fmt::format("{} ratios on {}", ratios.size(), device_.name(stream)));
    }
    std::size_t inbox_bytes(const UpdateSlice&, int) const override { return device_.inbox; }
    void sum_and_update(const OptimizerSettings&, const UpdateSlice& slice, const PeerInboxes& peers, StepRef,
                        Stream stream) override {
      device_.log.push_back(fmt::format("sum over {} and update parameter {} on {}", peers.size, parameters_of(slice),
                                        device_.name(stream)));
    }

   private:
    /// Of its chunks, in their order: "0 1 2".
    static std::string parameters_of(const UpdateSlice& slice) {
      std::vector<std::uint16_t> parameters;
      for (std::uint32_t i = 0; i < slice.chunk_count; ++i) parameters.push_back(slice.chunks[i].parameter);
      parameters.erase(std::unique(parameters.begin(), parameters.end()), parameters.end());
      return fmt::format("{}", fmt::join(parameters, " "));
    }

    FakeDevice& device_;
  };

  class FakeReduction final : public ReductionOps {
   public:
    explicit FakeReduction(FakeDevice& device) : device_(device) {}

    void sums_of_squares(const std::vector<SumOfSquares>& sums) override {
      std::vector<std::int64_t> sizes;
      for (const SumOfSquares& sum : sums) sizes.push_back(sum.values.size());
      device_.log.push_back(fmt::format("squares of {}", fmt::join(sizes, " and ")));
    }
    void chunk_squares(const std::vector<UpdateSlice>& slices, const std::uint32_t*, float*) override {
      std::vector<std::uint32_t> counts;
      for (const UpdateSlice& slice : slices) counts.push_back(slice.chunk_count);
      device_.log.push_back(fmt::format("squares of {} chunks", fmt::join(counts, " and ")));
    }
    std::size_t meeting_bytes() const override { return sizeof(std::uint32_t); }
    void meet(const PeerInboxes& peers, Stream stream) override {
      device_.log.push_back(fmt::format("meeting of {} on {}", peers.size, device_.name(stream)));
    }
    void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream stream) override {
      device_.log.push_back(fmt::format("sum of {} nodes of {} on {}", nodes.size(), sum.size(), device_.name(stream)));
      device_.sums.push_back(sum.data);
    }
    void add_tree(const Tensor& leaves, const Tensor& sum, Stream stream) override {
      device_.log.push_back(
          fmt::format("tree of {} leaves of {} on {}", leaves.dim(0), sum.size(), device_.name(stream)));
    }
    void clip_scale(const Tensor& squares, float, StepRef, NonFinite*, float*, Stream stream) override {
      device_.log.push_back(fmt::format("scale from {} sums on {}", squares.size(), device_.name(stream)));
    }
    void log_norm(const Tensor&, StepState*, Stream) override {}
    void add_unless_left_out(StepRef, MetricSums*, MetricSums*, Stream) override {}

   private:
    FakeDevice& device_;
  };

  class FakeOrthogonal final : public OrthogonalOps {
   public:
    explicit FakeOrthogonal(FakeDevice& device) : device_(device) {}

    void orthogonalise(const Tensor& values, const RowBlocks& rows, float, const Tensor&) override {
      device_.log.push_back(fmt::format("direction of {} rows of {}", rows.rows(values.dim(0)), values.dim(0)));
    }

   private:
    FakeDevice& device_;
  };

  std::unique_ptr<Device> host_ = make_cpu_device({});
  bool graphs_;
  bool capturing_ = false;
  char compute_ = 0;
  char communication_ = 0;
  std::array<char, 2> exchanges_ = {};
  Stream now_ = {&compute_};
};

/// Collectives that end when the test says so: message k has arrived once `arrived` > k, if it is not late.
class FakeCommunicator final : public Communicator {
 public:
  FakeCommunicator(FakeDevice& device, int size) : device_(device), size_(size) {}

  std::uint64_t arrived = UINT64_MAX;
  std::set<Ticket> late;
  std::uint64_t tests = 0;  ///< Calls of test().
  std::vector<void*> sent;
  bool reaches_peers = false;  ///< Whether allocate_for_peers() gives memory.
  bool copies = false;         ///< What copies_into() answers.

  int rank() const override { return 0; }
  int size() const override { return size_; }
  Buffer allocate(std::size_t bytes) override { return device_.allocate(bytes); }
  PeerMemory allocate_for_peers(std::size_t bytes) override {
    if (!reaches_peers || bytes == 0) return {};
    PeerMemory memory{allocate(bytes), {}};
    memory.of_rank.assign(static_cast<std::size_t>(size()), memory.mine.data());
    return memory;
  }
  Ticket all_reduce_sum(const Tensor& values, const Tensor&, Stream stream) override {
    return record("all-reduce", values, stream);
  }
  Ticket reduce_scatter_sum(const Tensor& values, const Tensor&, Stream stream) override {
    return record("reduce-scatter", values, stream);
  }
  Ticket all_gather(const Tensor&, const Tensor& values, Stream stream) override {
    return record("all-gather", values, stream);
  }
  Ticket all_to_all(const Tensor& values, const Tensor&, Stream stream) override {
    return record("all-to-all", values, stream);
  }
  bool copies_into(const Tensor&) const override { return copies; }
  bool test(Ticket ticket) override {
    ++tests;
    return ticket < arrived && !late.contains(ticket);
  }
  void wait(Ticket ticket) override {
    arrived = std::max(arrived, ticket + 1);
    late.erase(late.begin(), late.upper_bound(ticket));
  }
  Ticket reduce_sum(const Tensor&, const Tensor&, int, Stream) override { return 0; }
  Ticket broadcast(const Tensor& values, const Tensor&, int root, Stream stream) override {
    return record(fmt::format("broadcast by {}", root), values, stream);
  }
  Ticket exchange(const std::vector<Message>&, const std::vector<Message>&, Stream) override { return 0; }
  std::string library() const override { return "fake"; }

 private:
  Ticket record(const std::string& what, const Tensor& values, Stream stream) {
    device_.log.push_back(fmt::format("{} of {} on {}", what, values.size(), device_.name(stream)));
    sent.push_back(values.data);
    return sent.size() - 1;
  }

  FakeDevice& device_;
  int size_;
};

}  // namespace ddptrain
