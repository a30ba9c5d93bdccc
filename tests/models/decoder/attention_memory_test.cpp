#include <gtest/gtest.h>

#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "models/decoder/decoder.h"
#include "models/llama/llama.h"
#include "runtime/ops/attention/attention_plan.h"
#include "runtime/ops/meta_device.h"

namespace ddptrain::tests {
namespace {

/// Qwen2.5-7B's heads, of 128, in a narrow network.
LlamaShape llama(std::int64_t sequence) {
  LlamaShape shape;
  shape.layers = 2;
  shape.width = 256;
  shape.heads = 28;
  shape.key_heads = 4;
  shape.head_size = 128;
  shape.feed_forward = 256;
  shape.sequence = sequence;
  shape.vocabulary = 256;
  return shape;
}

std::map<std::string, std::size_t> memory_of(Device& device, const LlamaShape& shape, std::int64_t batch,
                                             const TensorSlice& slice = {}, std::int64_t longest_text = 0) {
  DecoderOptions options;
  options.table = llama_table(shape);
  options.max_batch = batch;
  options.slice = slice;
  options.longest_text = longest_text;
  std::map<std::string, std::size_t> memory;
  for (const MemoryUse& use : make_decoder(device, options, {})->memory()) memory[use.purpose] += use.bytes;
  return memory;
}

/// The numbers are those of an H100: deltas, gradients of scores, and seven parts of dk and dv. A GPU of this machine
/// may have others.
TEST(AttentionMemory, IsPredictedForHeadsOf128) {
  const auto device = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  const GpuProperties gpu = device->gpu().value();
  constexpr std::size_t kShort = 4 * 28 * 1024 * 4 + 4 * 28 * 1024 * 1152 + 2 * 4096 * 4 * 7 * 128 * 2;
  constexpr std::size_t kLong = 28 * 8192 * 4 + std::size_t{28} * 8192 * 8320;
  for (const auto& [sequence, batch, bytes] : {std::tuple{1024, 4, kShort}, std::tuple{8192, 1, kLong}}) {
    const auto memory = memory_of(*device, llama(sequence), batch);
    const AttentionBackwardPlan plan = plan_attention_backward({batch, 28, 4, sequence, 128}, DType::bf16, gpu);
    EXPECT_EQ(memory.at(plan.kernels == AttentionKernels::cudnn ? "cuDNN" : "attention"), plan.scratch_bytes);
    if (!gpu.warpgroups || gpu.multiprocessors != 132) continue;
    EXPECT_EQ(memory.count("cuDNN"), 0u);
    EXPECT_EQ(memory.at("attention"), bytes) << sequence;
  }
}

TEST(AttentionMemory, IsThatOfOneLayer) {
  const auto device = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  LlamaShape deep = llama(1024);
  deep.layers = 8;
  const auto rows = [](const std::map<std::string, std::size_t>& memory) {
    return std::pair{memory.count("attention") + memory.count("cuDNN"),
                     memory.count("attention") > 0 ? memory.at("attention") : memory.at("cuDNN")};
  };
  const auto shallow = rows(memory_of(*device, llama(1024), 8));
  EXPECT_EQ(shallow.first, 1u);
  EXPECT_EQ(rows(memory_of(*device, deep, 8)), shallow);
}

/// And of a chunk of the windows.
TEST(AttentionMemory, IsThatOfTheHeadsOfARank) {
  const auto device = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  const AttentionBackwardPlan half = plan_attention_backward({4, 14, 2, 1024, 128}, DType::bf16, device->gpu().value());
  const auto memory = memory_of(*device, llama(1024), 8, {.count = 2});
  EXPECT_EQ(memory.at(half.kernels == AttentionKernels::cudnn ? "cuDNN" : "attention"), half.scratch_bytes);
}

TEST(AttentionMemory, IsNothingOnCpusAndForTexts) {
  const auto cpu = make_meta_device({}, DeviceKind::cpu);
  EXPECT_EQ(memory_of(*cpu, llama(1024), 4).size(), 2u);  // activations and data
  const auto gpu = make_meta_device({.precision = Precision::bf16}, DeviceKind::cuda);
  EXPECT_EQ(memory_of(*gpu, llama(1024), 1, {}, 64).size(), 2u);
}

}  // namespace
}  // namespace ddptrain::tests
