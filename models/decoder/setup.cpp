#include <algorithm>
#include <utility>

#include "models/decoder/decoder.h"
#include "models/decoder/work.h"
#include "runtime/core/error.h"
#include "runtime/ops/attention/attention_plan.h"

// Memory, parameters and reports of a decoder.

namespace ddptrain {
namespace {

// Each piece of the output layer reads and writes the gradient of its weight, so pieces of few rows cost time.
constexpr std::int64_t kMinHeadRows = 4096;
constexpr std::int64_t kMinHeadLogits = kMinHeadRows * 163840;  // of a larger vocabulary there are fewer rows
constexpr std::int64_t kSmallBatchLogits = kMinHeadRows << 16;

std::int64_t rows_of(const DecoderOptions& options) { return options.max_batch * options.table.config.sequence; }

/// Rows of the longest window. Ranks that split layers divide them.
std::int64_t rows_of_window(const DecoderOptions& options) {
  if (options.longest_text == 0) return options.table.config.sequence;
  const std::int64_t slices = options.slice.count;
  return (options.longest_text + slices - 1) / slices * slices;
}

/// Rows of logits in memory at a time.
std::int64_t head_rows(const DecoderOptions& options) {
  if (options.longest_text > 0) return 1;
  const std::int64_t rows = rows_of(options);
  if (options.head_rows > 0) return std::min(rows, options.head_rows);
  const std::int64_t least = std::min(kMinHeadRows, kMinHeadLogits / options.table.config.vocabulary);
  return std::min(rows, std::max(least, (rows + 7) / 8));
}

/// Whether batches are so small that a GPU has room for weight gradients at the same time as other work.
bool batches_are_small(const DecoderOptions& options) {
  const std::int64_t most = std::min(kMinHeadRows, kSmallBatchLogits / options.table.config.vocabulary);
  return rows_of(options) <= std::min(head_rows(options), most);
}

/// UsageError if the device has no operations for a kind of layer.
void check_device(const DecoderConfig& config, const Device& device) {
  if (device.kind() == DeviceKind::cpu || config.activation != MlpActivation::gelu || config.mlp_bias) return;
  usage_error("a GELU without a bias: GPUs have no operation for it. Give --device cpu.");
}

}  // namespace

Decoder::Decoder(Device& device, const DecoderOptions& options, std::shared_ptr<Shared> shared)
    : device_(device),
      options_(options),
      config_(options_.table.config),
      shared_(std::move(shared)),
      stage_(config_, options_.blocks),
      parameters_(
          decoder_parameters(options_.table, options_.slice).of_stage(stage_.first_block(), stage_.last_block() + 1)),
      fp8_(device, config_, stage_, options_.slice.count, options_.longest_text == 0),
      overlap_(device, batches_are_small(options_)),
      memory_(device, options_.max_batch, rows_of_window(options_), options_.slice.count),
      workspace_(device, config_, stage_, {options_.slice, options_.dropout > 0.0f, fp8_.fits(), overlap_.overlaps()}),
      embedding_(device, config_.learns_positions()),
      final_norm_(device, config_.norm, config_.width, config_.epsilon()),
      head_(device, config_.width, config_.vocabulary, config_.vocabulary_rows(options_.slice), head_rows(options_)) {
  if (options_.pretrained) {
    for (ParameterSpec& spec : parameters_.specs) {
      spec.initial.read = [name = spec.name, read = options_.pretrained] { return read(name); };
    }
  }
  request_memory();
  memory_.place();
  if (options_.slice.count == 1) use_memory(device_.allocate(memory_.bytes()));
  if (has_tied_copy()) shared_->memory.tied_weight(device_, head_shape());
}

// --- memory -------------------------------------------------------------------------------------------------------

void Decoder::request_memory() {
  workspace_.request(memory_);
  for (std::int64_t layer = stage_.first_block(); layer <= stage_.last_block(); ++layer) {
    blocks_.push_back(std::make_unique<DecoderBlock>(device_, config_, options_.slice.count, options_.recompute));
    blocks_.back()->request(memory_, block_name(layer),
                            block_lifetimes(stage_, layer, options_.recompute, options_.slice.count > 1),
                            stage_.restores(layer), fp8_.fits());
    if (longest_text() > 0) request_cache(layer);
  }
  if (!stage_.has_head()) return;
  final_norm_.request_input(memory_, "final norm", workspace_.head_lifetime());
  final_norm_.request(memory_, "final norm", workspace_.head_lifetime(), workspace_.head_lifetime());
  head_.request(memory_, workspace_.head_lifetime(), workspace_.logits_lifetime());
  if (longest_text() > 0) head_.request_next_logits(memory_, workspace_.head_lifetime());
}

void Decoder::use_memory(Buffer memory) {
  memory_.use(std::move(memory));
  workspace_.connect();
}

void Decoder::fit(const BatchShape& batch) {
  const bool fp8 = fp8_.fits_batch(batch);
  for (const auto& block : blocks_) {
    block->fit(batch);
    block->set_fp8(fp8);
  }
  if (stage_.has_head()) final_norm_.fit(batch);
  workspace_.fit(batch, blocks_.front()->norm().input.shape);
  workspace_.set_fp8(fp8);
}

void Decoder::split_vocabulary() {
  if (options_.slice.count == 1) return;
  batch_.vocabulary_slice = {static_cast<std::uint32_t>(config_.vocabulary_rows(options_.slice).first),
                             static_cast<std::uint32_t>(config_.vocabulary)};
}

// --- parameters ---------------------------------------------------------------------------------------------------

void Decoder::bind(const ModelTensors& tensors) {
  check_fits("decoder", parameters_.specs, tensors, true);
  DDP_CHECK((tensors.group != nullptr) == (options_.slice.count > 1), "decoder: slices of a model without a group");
  group_ = tensors.group;
  if (group_ != nullptr && !memory_.has_memory()) {  // texts have small messages, for which kernels are faster
    use_memory(longest_text() > 0 ? device_.allocate(memory_.bytes()) : group_->allocate(memory_.bytes()));
  }
  for (std::int64_t layer = stage_.first_block(); layer <= stage_.last_block(); ++layer) {
    block(layer).bind(tensors, parameters_.blocks[static_cast<std::size_t>(layer)].first);
  }
  fp8_.bind(tensors, blocks_);
  if (stage_.has_embedding()) embedding_.bind(tensors, parameters_.embedding.first);
  bind_head(tensors);
  if (!stage_.is_whole()) bind_boundaries(tensors.gradients.front().dtype);
}

void Decoder::bind_head(const ModelTensors& tensors) {
  const std::size_t own = parameters_.head.first;
  if (stage_.has_head()) final_norm_.bind(tensors, parameters_.head.end() - final_norm_.parameters());
  if (!config_.tied_head) {
    if (!stage_.has_head()) return;
    own_head_gradient_ = tensors.gradients[own];
    head_.bind({tensors.weights[own].data, device_.dtype(), head_shape()}, group_);
  } else if (stage_.has_embedding()) {
    head_.bind({embedding_.tokens().data, device_.dtype(), head_shape()}, group_);
  } else {
    head_.bind(shared_->memory.tied_weight(device_, head_shape()), group_);
  }
}

void Decoder::bind_boundaries(DType gradient_type) {
  if (!config_.mlp_bias) return;
  if (!stage_.has_embedding()) {
    previous_dbias_ = shared_->memory.previous_dbias(device_, gradient_type, config_.width);
  }
  if (stage_.has_head()) return;
  next_dbias_memory_ = device_.allocate(gradient_type, {config_.width});
  next_dbias_ = next_dbias_memory_.view(gradient_type, {config_.width});
}

/// The gradient of the last bias of the previous block, which the first norm of block `layer` computes. Without data if
/// the previous block computes it.
Tensor Decoder::previous_dbias(std::int64_t layer) {
  if (layer > stage_.first_block()) return block(layer - 1).mlp().dbias_from_next();
  return stage_.has_embedding() || branches_give_dbias() ? Tensor{} : previous_dbias_;
}

/// The next stage has the sum of the last bias gradient over the passes.
void Decoder::take_next_dbias() {
  const Tensor dbias = block(stage_.last_block()).mlp().dbias_from_next();
  if (dbias) device_.copy(dbias.data, next_dbias_.data, dbias.bytes(), device_.compute_stream());
}

// --- pipelines ----------------------------------------------------------------------------------------------------

// What crosses the boundary of two stages. Forward: the residual stream, and the branch that is still to be added to
// it; the first norm of the later stage adds it. Backward: the gradient of the stream, and the gradient of the last
// bias of the earlier stage, which that norm computes. With a tied head, the stages also pass the token embedding on to
// the last stage, and its gradient back.

/// The residual stream, and this rank's rows of the branch.
std::vector<Tensor> Decoder::rows_of_ranks(const Tensor& stream, const Norm& norm) const {
  std::vector<Tensor> rows = norm.own_rows(workspace_.branch());
  rows.insert(rows.begin(), stream);
  return rows;
}

StageBoundary Decoder::previous_boundary() {
  if (stage_.has_embedding()) return {};
  const std::int64_t first = stage_.first_block();
  return {rows_of_ranks(workspace_.previous_stream(), block(first).norm()),
          {workspace_.d_stream(), previous_dbias(first)},
          config_.tied_head ? head_.weight() : Tensor{},
          config_.tied_head ? workspace_.d_head() : Tensor{}};
}

StageBoundary Decoder::next_boundary() {
  if (stage_.has_head()) return {};
  const Norm& last = block(stage_.last_block()).mlp().norm();
  return {rows_of_ranks(last.input, last),
          {workspace_.d_stream(), branches_give_dbias() ? Tensor{} : next_dbias_},
          config_.tied_head ? head_.weight() : Tensor{},
          config_.tied_head ? workspace_.d_head() : Tensor{}};
}

std::unique_ptr<Model> Decoder::sibling() {
  if (stage_.is_whole()) return nullptr;
  return std::make_unique<Decoder>(device_, options_, shared_);
}

// --- reports ------------------------------------------------------------------------------------------------------

Span Decoder::span(const std::string& name) const {
  return {device_.timeline(), Lane::compute, device_.compute_stream(), name};
}
std::string Decoder::block_name(std::int64_t layer) const {
  return fmt::format("{}.{}", options_.table.names.block, layer);
}

double Decoder::flops_per_sample() const {  // Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B
  const auto parameters = static_cast<double>(element_count(parameters_of_all_stages()));
  const auto sequence = static_cast<double>(config_.sequence);
  const double attention = 12.0 * static_cast<double>(config_.layers * config_.attention().width()) * sequence;
  return sequence * (6.0 * parameters + attention);
}

/// FLOP of all stages. What is ready after how many FLOP is about this stage.
ModelWork Decoder::work() const {
  ModelWork work = decoder_work(config_, options_.table.names.block, options_.recompute, options_.stages);
  const auto first = work.ready_after.begin() + static_cast<std::ptrdiff_t>(parameters_.of_later_stages);
  work.ready_after = {first, first + std::ssize(parameters_.specs)};
  return work;
}

std::vector<Sent> Decoder::sends(std::int64_t passes) const {
  return decoder_sends(config_, {stage_.first_block(), stage_.last_block() + 1},
                       {options_.slice.count, options_.max_batch, options_.recompute, device_.precision()}, passes);
}

std::vector<MemoryUse> Decoder::memory() const {
  std::vector<MemoryUse> memory = {{"activations", memory_.bytes()}, {"data", total_bytes(shared_->text.memory)}};
  if (has_tied_copy()) memory.push_back({"tied weights", shared_->memory.tied_weight_bytes()});
  const std::optional<GpuProperties> gpu = device_.gpu();
  if (!gpu || longest_text() > 0) return memory;  // texts have no backward pass
  const AttentionKind kind = config_.attention().slice(options_.slice.count);
  const BatchShape batch{options_.max_batch, config_.sequence};
  const std::int64_t windows = batch.batch / std::ssize(batch.chunks(options_.slice.count));
  const AttentionBackwardPlan plan = plan_attention_backward(
      {windows, kind.heads, kind.key_heads, config_.sequence, kind.head_size}, device_.dtype(), *gpu);
  memory.push_back({plan.kernels == AttentionKernels::cudnn ? "cuDNN" : "attention", plan.scratch_bytes});
  return memory;
}

std::unique_ptr<Decoder> make_decoder(Device& device, const DecoderOptions& options, ResidentTokens tokens) {
  check_config(options.table.config);
  check_device(options.table.config, device);
  DDP_CHECK(options.max_batch > 0, "decoder: a batch of {}", options.max_batch);
  return std::make_unique<Decoder>(device, options,
                                   std::make_shared<Decoder::Shared>(Decoder::Shared{std::move(tokens), {}}));
}

}  // namespace ddptrain
