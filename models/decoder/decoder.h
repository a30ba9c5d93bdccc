#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "data/text/tokens.h"
#include "models/decoder/block.h"
#include "models/decoder/config.h"
#include "models/decoder/fp8.h"
#include "models/decoder/overlap.h"
#include "models/decoder/parameters.h"
#include "models/decoder/stage.h"
#include "models/decoder/workspace.h"
#include "models/generation/text_model.h"
#include "models/layers/embedding.h"
#include "models/layers/head.h"
#include "runtime/device/device.h"
#include "runtime/train/model.h"

namespace ddptrain {

struct DecoderOptions {
  DecoderTable table = {};
  StageBlocks blocks = {};     ///< The pipeline stage.
  std::int64_t stages = 1;     ///< All pipeline stages of the model. For work() only.
  TensorSlice slice = {};      ///< This rank's slice of each layer, the embedding and the head.
  std::int64_t max_batch = 0;  ///< Maximum of windows per micro-step.
  std::uint64_t seed = 0;      ///< Seed of dropout.
  float dropout = 0.0f;        ///< Rate of dropout on the embedding and on each branch. Below 1.
  Recompute recompute = Recompute::none;
  /// Rows of logits in memory at a time. 0: an eighth of all, but at least 4,096, or fewer if there are more than
  /// 163,840 tokens.
  std::int64_t head_rows = 0;
  std::int64_t longest_text = 0;  ///< See TextModel. If it is set, the model is not trained, and max_batch is 1.
  /// Returns the initial values of a parameter by its name. Null: random values.
  std::function<std::vector<float>(const std::string& name)> pretrained = nullptr;
};

/// What a pass over a text reads and writes on the host, and its copies where the device computes.
struct TextPass {
  TextPass(Device& device, std::int64_t tokens, std::int64_t vocabulary);

  std::int64_t* position() { return static_cast<std::int64_t*>(host.data()); }  ///< Of the first token of the pass.
  std::uint32_t* tokens() { return reinterpret_cast<std::uint32_t*>(position() + 1); }

  Buffer host;       ///< Pinned: the position, and the tokens.
  Buffer input;      ///< Its copy.
  Buffer segment;    ///< A TokenSegmentView of the tokens.
  Buffer likeliest;  ///< A LikeliestToken.
  Buffer host_likeliest;
  Buffer logits;  ///< f32
  Buffer host_logits;
  Tensor newest_logits = {};                  ///< Of the token after the text, in the model's type.
  std::int64_t last_row = 0;                  ///< The row of the text's last token.
  bool has_run = false;                       ///< A pass over one token has run.
  std::unique_ptr<Graph> replayed = nullptr;  ///< A captured pass over one token.
};

/// A decoder-only transformer, or a pipeline stage of one. forward() of the head begins the backward pass: it computes
/// the output layer in pieces of options.head_rows rows, and keeps their gradient instead of the logits. It also
/// computes the gradient of its input and, for large batches, of its weight.
///
/// decoder.cpp has the passes, text.cpp what generation of text adds, setup.cpp all else.
class Decoder final : public TextModel {
 public:
  /// What siblings have in common.
  struct Shared {
    ResidentTokens text;
    StageMemory memory = {};
  };

  Decoder(Device& device, const DecoderOptions& options, std::shared_ptr<Shared> shared);

  const std::vector<ParameterSpec>& parameters() const override { return parameters_.specs; }
  std::vector<Unit> units() const override { return stage_.describe_units(parameters_, options_.table); }
  std::vector<BufferSpec> buffers() const override { return fp8_.buffers(); }
  void bind(const ModelTensors& tensors) override;
  void restored() override { fp8_.restored(); }

  void begin(const MicroBatch& batch) override;
  void forward(std::size_t unit) override;
  void backward(std::size_t unit, bool accumulate, const Ready& ready) override;

  std::int64_t longest_text() const override { return options_.longest_text; }
  void begin_text(std::span<const std::uint32_t> text, std::int64_t done) override;
  void forward_text(const BeforeUnit& before_unit) override;
  std::span<const float> next_logits() override;
  std::optional<std::uint32_t> likeliest_token() override;

  StageBoundary previous_boundary() override;
  StageBoundary next_boundary() override;
  std::unique_ptr<Model> sibling() override;

  std::vector<ParameterSpec> parameters_of_all_stages() const override {
    return decoder_parameters(options_.table).specs;
  }
  double flops_per_sample() const override;
  ModelWork work() const override;
  std::vector<Sent> sends(std::int64_t passes) const override;
  std::vector<MemoryUse> memory() const override;
  const char* sample_unit() const override { return "tokens"; }
  std::int64_t predictions_per_sample() const override { return config_.sequence; }

  /// The activation buffers of one sibling, for tests and reports.
  const std::vector<NamedBuffer>& activation_buffers() const { return memory_.buffers(); }

 private:
  static constexpr std::uint32_t kEmbeddingSite = 1;  ///< Of dropout. The two sites of each block follow.

  void forward_embedding();
  void forward_block(std::int64_t layer);
  void forward_head();
  void enter(std::int64_t layer, Norm& norm);
  void backward_head(bool accumulate, const Ready& ready);
  void backward_block(std::int64_t layer, bool accumulate, const Ready& ready);
  void backward_block_0(bool accumulate);
  void backward_embedding(bool accumulate, const Ready& ready);
  void embedding_gradient(bool accumulate, const Ready& ready);

  DecoderBlock& block(std::int64_t layer) { return *blocks_[static_cast<std::size_t>(layer - stage_.first_block())]; }
  Tensor previous_dbias(std::int64_t layer);
  void take_next_dbias();
  bool branches_give_dbias() const { return Sublayer::gives_dbias(options_.dropout, group_); }
  Dropout dropout(std::uint32_t site) const;
  Dropout block_dropout(std::int64_t layer, std::uint32_t half) const;
  Span span(const std::string& name) const;
  std::string block_name(std::int64_t layer) const;
  Shape head_shape() const { return {config_.vocabulary_rows(options_.slice).padded, config_.width}; }
  /// Whether the stage has a copy of the token embedding.
  bool has_tied_copy() const { return config_.tied_head && !stage_.has_embedding(); }
  void report(const DecoderParameters::Range& range, const Ready& ready) const;

  void split_vocabulary();
  void fit(const BatchShape& batch);
  void request_memory();
  void use_memory(Buffer memory);
  void request_cache(std::int64_t layer);
  void queue_text(const BeforeUnit& before_unit);
  void bind_head(const ModelTensors& tensors);
  void bind_boundaries(DType gradient_type);
  std::vector<Tensor> rows_of_ranks(const Tensor& stream, const Norm& norm) const;

  Device& device_;
  DecoderOptions options_;
  const DecoderConfig& config_;  ///< options_.table.config
  std::shared_ptr<Shared> shared_;
  Stage stage_;
  DecoderParameters parameters_;
  Fp8 fp8_;
  Overlap overlap_;
  Activations memory_;
  Workspace workspace_;
  Embedding embedding_;
  std::vector<std::unique_ptr<DecoderBlock>> blocks_;  ///< Of the stage.
  Norm final_norm_;
  Head head_;
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all of each layer.
  Tensor own_head_gradient_;      ///< Of an output layer with a weight of its own.
  Tensor previous_dbias_;         ///< [width]: of the last bias of the previous stage.
  Tensor next_dbias_;             ///< [width]: of this stage's own last bias, summed by the next stage.
  Buffer next_dbias_memory_;
  MicroBatch micro_batch_;
  TokenBatch batch_;              ///< The same, as tokens.
  std::optional<TextPass> text_;  ///< Empty until a text begins.
};

/// UsageError if the table is impossible, or if the device has no operations for it.
std::unique_ptr<Decoder> make_decoder(Device& device, const DecoderOptions& options, ResidentTokens tokens);

}  // namespace ddptrain
