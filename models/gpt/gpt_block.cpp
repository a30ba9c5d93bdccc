#include "models/gpt/gpt_block.h"

namespace ddptrain {

GptBlock::GptBlock(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute)
    : device_(device),
      recompute_(recompute),
      attention_(device, shape.width, shape.heads, parts, static_cast<float>(shape.norm_epsilon)),
      mlp_(device, shape.width, shape.feed_forward, parts, static_cast<float>(shape.norm_epsilon),
           recompute == Recompute::gelu) {}

void GptBlock::bind(const ModelTensors& tensors, std::size_t first) {
  mlp_.bind(tensors, first);
  attention_.bind(tensors, first + Sublayer::kParameters);
}

GptBlock GptBlock::make(Device& device, const GptShape& shape, std::int64_t parts, Recompute recompute, bool fp8,
                        const std::vector<GptBlock>& others, Activations& memory) {
  const bool shares = !others.empty() && recompute == Recompute::block;
  GptBlock block = shares ? others.front() : GptBlock(device, shape, parts, recompute);
  if (!shares) {
    block.attention_.allocate(memory, fp8);
    block.mlp_.norm().input = memory.part(shape.width);
    block.mlp_.allocate(memory);
    if (others.empty() || recompute == Recompute::none) {
      block.mlp_.allocate_hidden(memory);
    } else {
      block.mlp_.share_hidden(others.front().mlp_);
    }
  }
  block.norm().input = memory.part(shape.width);
  if (fp8) {
    block.attention_.prepare_fp8(memory);
    block.mlp_.prepare_fp8(memory);
  }
  return block;
}

void GptBlock::bind_scales(Fp8Scales& scales, std::size_t first) {
  attention_.bind_scales(scales, first);
  mlp_.bind_scales(scales, first + Sublayer::kScales);
}

void GptBlock::set_fp8(bool fp8) {
  attention_.set_fp8(fp8);
  mlp_.set_fp8(fp8);
}

void GptBlock::fit(const BatchShape& shape) {
  attention_.fit(shape);
  mlp_.fit(shape);
}

void GptBlock::forward(const Tensor& branch) {
  if (mlp_.fp8()) {
    const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "weights to FP8");
    attention_.convert_weights();
    mlp_.convert_weights();
  }
  attention_.forward(branch);
  attention_.add(branch, mlp_.norm());
  mlp_.forward(branch);
}

void GptBlock::restore(const Tensor& branch) {
  if (recompute_ == Recompute::gelu) mlp_.restore_gelu();
  if (recompute_ != Recompute::block) return;
  norm().forward();
  attention_.forward(branch);
  attention_.add(branch, mlp_.norm());
  mlp_.expand();
}

}  // namespace ddptrain
