#include "models/decoder/fp8.h"

namespace ddptrain {
namespace {

/// Whether the linear layers of an MLP can multiply in FP8, whatever their sizes.
bool fits_mlp(const MlpKind& mlp) {
  switch (mlp.activation) {
    case MlpActivation::gelu:
      return mlp.bias;
    case MlpActivation::swiglu:  // no operation computes the gradient of the first bias
      return !mlp.bias;
  }
  return false;
}

/// Whether all linear layers of a block can multiply in FP8.
bool fits_layers(const QuantisationOps& quantisation, const DecoderConfig& config) {
  const AttentionKind attention = config.attention();
  return fits_mlp(config.mlp()) && quantisation.fits(config.hidden, config.width) &&
         quantisation.fits(attention.qkv_columns(), attention.width());
}

}  // namespace

Fp8::Fp8(Device& device, const DecoderConfig& config, const Stage& stage, std::int64_t slices, bool trains)
    : quantisation_(device.get<QuantisationOps>()),
      width_(config.width),
      scales_per_stage_(static_cast<std::size_t>(stage.blocks()) * DecoderBlock::kScales),
      fits_(trains && stage.is_whole() && slices == 1 && fits_layers(quantisation_, config)) {}

std::vector<BufferSpec> Fp8::buffers() const {
  if (!fits_) return {};
  return {{"fp8_scales", {static_cast<std::int64_t>(scale_formats().size()), QuantisationOps::kStateSize}}};
}

std::vector<DType> Fp8::scale_formats() const {
  std::vector<DType> formats;
  while (formats.size() < scales_per_stage_) {
    formats.insert(formats.end(), Linear::kScaleFormats.begin(), Linear::kScaleFormats.end());
  }
  return formats;
}

void Fp8::bind(const ModelTensors& tensors, std::vector<std::unique_ptr<DecoderBlock>>& blocks) {
  if (!fits_) return;
  scales_ = quantisation_.make_scales(scale_formats(), tensors.buffers.at(0));
  for (std::size_t i = 0; i < blocks.size(); ++i) blocks[i]->bind_scales(*scales_, i * DecoderBlock::kScales);
}

void Fp8::restored() {
  if (scales_) scales_->restored();
}

bool Fp8::fits_batch(const BatchShape& batch) const { return fits_ && quantisation_.fits(batch.rows(), width_); }

void Fp8::end_evaluation() {
  if (scales_) scales_->forget_magnitudes();
}

void Fp8::end_backward() {
  if (scales_) scales_->renew();
}

}  // namespace ddptrain
