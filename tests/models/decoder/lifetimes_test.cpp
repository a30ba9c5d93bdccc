#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "models/decoder/decoder.h"
#include "models/gpt2/gpt2.h"
#include "runtime/device/cpu/cpu_device.h"
#include "tests/models/model_run.h"
#include "tests/models/second_family/tiny_llama.h"
#include "tests/ops/token_batches.h"

namespace ddptrain::tests {
namespace {

constexpr std::int64_t kWindows = 3;

/// Does work that may overlap with other work as late as it may.
class LateDevice final : public CpuDevice {
 public:
  using CpuDevice::CpuDevice;

  void run_concurrently(const std::function<void()>& work) override { late_.push_back(work); }
  void wait_concurrent() override {
    for (const auto& work : std::exchange(late_, {})) work();
  }

 private:
  std::vector<std::function<void()>> late_;
};

/// A decoder and its memory. In fp64, so that all buffers are doubles.
class DecoderRun {
 public:
  DecoderRun(Device& device, const DecoderOptions& options)
      : run_(device, DType::f64, [&](Bench& bench) {
          const auto sequence = static_cast<std::uint32_t>(options.table.config.sequence);
          const TokenBatch data = random_tokens(bench, kWindows, sequence, options.table.config.vocabulary, 3);
          std::unique_ptr<Decoder> model = make_decoder(device, options, {data.source, data.source});
          model_ = model.get();
          return BoundModel{std::move(model), data};
        }) {
    for (std::size_t i = 0; i < run_.weights().size(); ++i) {
      assign(run_.weights()[i],
             random_values(run_.weights()[i].size(), static_cast<std::uint32_t>(900 + i), -0.5, 0.5));
    }
  }

  std::map<std::string, Values> gradients() {
    run_.forward(run_.slice(), 0.25f);
    return run_.backward(false);
  }

  /// The same, with NaN in all memory that no buffer needs, whenever a unit has ended.
  std::map<std::string, Values> gradients_with_poison() {
    const PassSteps steps(std::ssize(model_->units()));
    MetricSums sums;
    poison(-1);
    model_->begin({run_.slice(), &sums, true, 0.25f});
    for (std::size_t unit = 0; unit < model_->units().size(); ++unit) {
      model_->forward(unit);
      poison(steps.forward(static_cast<std::int64_t>(unit)));
    }
    for (std::size_t unit = model_->units().size(); unit-- > 0;) {
      model_->backward(unit, false, [](std::size_t) {});
      poison(steps.backward(static_cast<std::int64_t>(unit)));
    }
    return run_.gradients();
  }

 private:
  /// A buffer is needed after `step` if it is alive in this step and in the next one.
  void poison(std::int64_t step) {
    const Lifetime before(step, step);
    const Lifetime after(step + 1, step + 1);
    const NamedBuffer& first = model_->activation_buffers().front();
    auto* const memory = reinterpret_cast<double*>(first.tensor->as<char>() - first.begin);
    std::vector<bool> needed(model_->memory().front().bytes / sizeof(double), false);
    for (const NamedBuffer& buffer : model_->activation_buffers()) {
      if (!buffer.lifetime.meets(before) || !buffer.lifetime.meets(after)) continue;
      const auto begin = static_cast<std::ptrdiff_t>(buffer.begin / sizeof(double));
      std::fill_n(needed.begin() + begin, buffer.bytes() / sizeof(double), true);
    }
    for (std::size_t i = 0; i < needed.size(); ++i) {
      if (!needed[i]) memory[i] = std::nan("");
    }
  }

  Decoder* model_ = nullptr;
  ModelRun run_;
};

DecoderOptions options_of(const DecoderTable& table) {
  DecoderOptions options;
  options.table = table;
  options.max_batch = kWindows;
  options.seed = 5;
  return options;
}

/// Lifetimes say enough: no unit reads memory that is free, though weight gradients may be computed as late as
/// possible.
TEST(DecoderLifetimes, NothingIsReadThatIsNotAlive) {
  LateDevice late({.precision = Precision::fp64});
  const auto device = make_cpu_device({.precision = Precision::fp64});
  for (const DecoderTable& table :
       {gpt2_table({3, 12, 3, 20, 6, 11}), gpt2_table({1, 12, 3, 20, 6, 11}), tiny_llama(3), tiny_llama(1)}) {
    for (const float dropout : {0.0f, 0.25f}) {
      for (const Recompute recompute : {Recompute::none, Recompute::gelu, Recompute::selective, Recompute::block}) {
        for (const std::int64_t head_rows : {0, 5}) {  // small batches; and large ones, in pieces
          DecoderOptions options = options_of(table);
          options.dropout = dropout;
          options.recompute = recompute;
          options.head_rows = head_rows;
          DecoderRun expected(*device, options);
          DecoderRun run(late, options);
          EXPECT_EQ(run.gradients_with_poison(), expected.gradients())
              << table.names.block << ", " << table.config.layers << " layers, dropout " << dropout << ", recompute "
              << static_cast<int>(recompute) << ", pieces of " << head_rows;
        }
      }
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
