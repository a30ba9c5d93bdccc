#include "models/gpt/gpt.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "models/gpt/gpt_block.h"
#include "models/gpt/work.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/core/error.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/quantisation.h"

namespace ddptrain {

namespace {

constexpr std::uint32_t kEmbeddingSite = 1;  // the blocks' two sites each follow
constexpr std::int64_t kMinHeadRows = 4096;  // enough to fill a GPU with the output layer
constexpr std::size_t kFinalNorm = 0;        // places in parameters()

/// Where the first parameter of block `layer` is; the embeddings stand before block 0.
std::size_t first_parameter(const GptShape& shape, std::int64_t layer) {
  const auto before = static_cast<std::size_t>(shape.layers - 1 - layer);
  return 2 + before * GptBlock::kParameters + (layer == 0 ? 2 : 0);
}
std::size_t token_embedding(const GptShape& shape) { return first_parameter(shape, 0) - 2; }

/// What siblings have in common.
struct Shared {
  ResidentTokens text;
  Buffer before_dbias;  ///< Of the bias whose sums the first norm of a stage gives, over the passes of a step.
  Buffer head;          ///< In a stage without the token embedding: a copy of it.
};

class Gpt final : public Model {
 public:
  Gpt(Device& device, const GptOptions& options, std::shared_ptr<Shared> shared)
      : device_(device),
        options_(options),
        shared_(std::move(shared)),
        text_(shared_->text),
        shape_(options.shape),
        vocabulary_(vocabulary_rows(options.shape, options.part)),
        first_(options.stage.first),
        end_(options.stage.end > 0 ? options.stage.end : options.shape.layers),
        parameters_(stage_parameters()),
        linear_(device.get<LinearOps>()),
        embedding_(device.get<EmbeddingOps>()),
        loss_(device.get<LossOps>()),
        quantisation_(device.get<QuantisationOps>()),
        fp8_fits_(whole() && options.part.count == 1 &&
                  quantisation_.fits(options.shape.feed_forward, options.shape.width)),
        memory_(device, options.max_batch, options.shape.sequence, options.part.count),
        final_norm_(device, options.shape.width, static_cast<float>(options.shape.norm_epsilon)) {
    for (ParameterSpec& spec : parameters_) {
      if (options.pretrained) spec.initial.read = [name = spec.name, read = options.pretrained] { return read(name); };
    }
    const std::int64_t rows = options.max_batch * shape_.sequence;
    head_rows_ = std::min(rows, options.head_rows > 0 ? options.head_rows : std::max(kMinHeadRows, (rows + 7) / 8));
    leaves_room_ = rows <= std::min(head_rows_, kMinHeadRows);
    allocate_activations();
    allocate_gradients();
    if (!has_embedding()) copy_head();
    if (fp8_fits_) allocate_fp8();
  }

  const std::vector<ParameterSpec>& parameters() const override { return parameters_; }

  std::vector<BufferSpec> buffers() const override {
    if (!fp8_fits_) return {};
    return {{"fp8_scales", {static_cast<std::int64_t>(scale_formats().size()), QuantisationOps::kStateSize}}};
  }

  void bind(const ModelTensors& tensors) override {
    check_fits("gpt", parameters_, tensors, true);
    DDP_CHECK((tensors.group != nullptr) == (options_.part.count > 1), "gpt: parts of a model without a group");
    group_ = tensors.group;
    const std::vector<Tensor>& weights = tensors.weights;
    const std::vector<Tensor>& gradients = tensors.gradients;
    for (std::int64_t layer = first_; layer < end_; ++layer) block(layer).bind(tensors, place_of_block(layer));
    if (fp8_fits_) bind_scales(tensors.buffers.at(0));
    if (has_head()) final_norm_.bind(tensors, kFinalNorm);
    if (has_embedding()) {
      const std::size_t token = place(token_embedding(shape_));
      tokens_ = weights[token];
      dtokens_ = gradients[token];
      positions_ = weights[token + 1];
      dpositions_ = gradients[token + 1];
      head_ = {tokens_.data, tokens_.dtype, {vocabulary_.padded, shape_.width}};
    }
    if (!whole()) bind_boundaries(gradients.front().dtype);
  }

  void restored() override {
    if (scales_) scales_->restored();
  }

  /// The embedding, the blocks, and the head, which begins with the final norm and reads the token embedding; of those,
  /// what the stage has.
  std::vector<Unit> units() const override {
    std::vector<Unit> units;
    if (has_embedding()) units.push_back({"embedding", place(token_embedding(shape_)), 2});
    for (std::int64_t layer = first_; layer < end_; ++layer) {
      units.push_back({fmt::format("h.{}", layer), place_of_block(layer), GptBlock::kParameters});
    }
    if (!has_head()) return units;
    units.push_back({"head", kFinalNorm, 2});
    if (has_embedding()) units.back().also_reads = {place(token_embedding(shape_))};
    return units;
  }

  /// What arrives for the next pass may do so while the gradients of the last one leave.
  StageBoundary before() override {
    if (has_embedding()) return {};
    return {{before_, block(first_).norm().own(branch_)}, {mlp_gradients_.dout, dbias_before(first_)}, head_, dhead_};
  }
  StageBoundary behind() override {
    if (has_head()) return {};
    const Tensor dbias = branches_give_dbias() ? Tensor{} : behind_dbias_;
    const Norm& last = block(end_ - 1).mlp().norm();
    return {{last.input, last.own(branch_)}, {mlp_gradients_.dout, dbias}, head_, dhead_};
  }

  std::unique_ptr<Model> sibling() override {
    if (whole()) return nullptr;
    return std::make_unique<Gpt>(device_, options_, shared_);
  }
  void begin(const MicroBatch& batch) override {
    step_ = batch;
    fit_to_batch({batch.slice, batch.training ? text_.train : text_.validation});
  }

  void forward(std::size_t unit) override {
    const std::int64_t layer = layer_of(unit);
    if (layer < 0) {
      const Tensor& stream = block(0).norm().input;
      const Tensor& mine = group_ != nullptr ? branch_ : stream;
      embedding_.embed_tokens(batch_, tokens_, positions_, dropout(kEmbeddingSite), mine);
      if (group_ != nullptr) group_->run({TensorGroup::sum_part(mine, stream)});  // of one value and zeros
    } else if (layer < shape_.layers) {
      const Span span = part(fmt::format("h.{} forward", layer));
      forward_block(layer);
    } else {
      forward_head();
    }
  }

  void backward(std::size_t unit, bool accumulate, const Ready& ready) override {
    const std::int64_t layer = layer_of(unit);
    if (layer < 0) return backward_embedding(accumulate, ready);
    if (layer == shape_.layers) return backward_head(accumulate, ready);
    const Span span = part(fmt::format("h.{} backward", layer));
    if (layer == end_ - 1 && !has_head()) take_dbias();
    if (layer == 0) return backward_first_block(accumulate);
    backward_block(layer, accumulate, ready);
    if (layer == first_ && leaves_room_) device_.join();  // the output layer's gradient goes to the stage before
  }

  std::vector<ParameterSpec> parameters_of_all_stages() const override { return gpt_parameters(shape_); }

  double flops_per_sample() const override {  // Chowdhery et al., "PaLM", arXiv:2204.02311, appendix B
    const auto parameters = static_cast<double>(element_count(parameters_of_all_stages()));
    const auto sequence = static_cast<double>(shape_.sequence);
    const double attention = 12.0 * static_cast<double>(shape_.layers * shape_.width) * sequence;
    return sequence * (6.0 * parameters + attention);
  }
  /// Of all stages; what is ready after how many FLOP, of this one.
  ModelWork work() const override {
    ModelWork work = gpt_work(shape_, options_.recompute);
    const auto first = work.ready_after.begin() + static_cast<std::ptrdiff_t>(first_place());
    work.ready_after = {first, first + std::ssize(parameters_)};
    return work;
  }
  std::vector<Sent> sends(std::int64_t passes) const override {
    return gpt_sends(shape_, {first_, end_}, options_.part.count, options_.recompute, options_.max_batch, passes,
                     device_.precision());
  }
  std::vector<MemoryUse> memory() const override {
    std::vector<MemoryUse> memory = {{"activations", memory_.bytes()}, {"data", total_bytes(text_.memory)}};
    if (!has_embedding()) memory.push_back({"tied weights", shared_->head.bytes()});
    return memory;
  }
  const char* unit() const override { return "tokens"; }
  std::int64_t predictions_per_sample() const override { return shape_.sequence; }

 private:
  void allocate_activations() {
    for (std::int64_t layer = first_; layer < end_; ++layer) {
      blocks_.push_back(
          GptBlock::make(device_, shape_, options_.part.count, options_.recompute, fp8_fits_, blocks_, memory_));
    }
    if (!has_embedding()) before_ = memory_.part(shape_.width);
    if (!has_head()) return;
    final_norm_.input = memory_.part(shape_.width);
    final_norm_.allocate(memory_);
    if (options_.part.count == 1) return;
    facts_ = memory_.statistics({head_rows_, LossOps::kFacts});
    all_facts_ = memory_.statistics({options_.part.count, head_rows_, LossOps::kFacts});
  }

  /// Gradients of the residual stream have one memory where there is dropout. Without it they are what the linear
  /// layers' gradients come from, and are apart.
  void allocate_gradients() {
    const std::int64_t tokens = options_.max_batch * shape_.sequence;
    const std::int64_t feed_forward = shape_.feed_forward / options_.part.count;
    const std::int64_t qkv = 3 * shape_.width / options_.part.count;
    const std::int64_t dpre = tokens * feed_forward;
    const std::int64_t dqkv = tokens * qkv;
    const std::int64_t logits = has_head() ? head_rows_ * vocabulary_.padded : 0;
    const auto aligned = [](std::int64_t elements) { return (elements + 255) / 256 * 256; };
    const std::int64_t dpre_begin = leaves_room_ ? aligned(logits) : 0;
    const std::int64_t dqkv_begin = dpre_begin + aligned(dpre);
    logits_ = memory_.allocate(device_.dtype(), {std::max(logits, dqkv_begin + dqkv)});
    SublayerGradients &mlp = mlp_gradients_, &attention = attention_gradients_;
    mlp.dinner = logits_.stretch(dpre_begin, feed_forward);
    attention.dinner = logits_.stretch(dqkv_begin, qkv);
    dhead_ = memory_.allocate(master_dtype(device_.precision()), {vocabulary_.padded, shape_.width});
    branch_ = mlp.dnorm = attention.dnorm = memory_.activation(shape_.width);
    mlp.dout = memory_.activation(shape_.width);
    mlp.din = memory_.activation(shape_.width);
    attention.din = memory_.activation(shape_.width);
    if (options_.dropout > 0.0f) {
      mlp.dbranch = std::exchange(mlp.din, mlp.dout);
      attention.dbranch = std::exchange(attention.din, mlp.dout);
    }
    attention.dout = mlp.din;
  }

  void allocate_fp8() {
    mlp_gradients_.dbranch_fp8 = memory_.activation(DType::e5m2, shape_.width);
    attention_gradients_.dbranch_fp8 = memory_.activation(DType::e5m2, shape_.width);
    attention_gradients_.dinner_fp8 = memory_.activation(DType::e5m2, 3 * shape_.width);
  }
  std::vector<DType> scale_formats() const {
    std::vector<DType> formats;
    while (formats.size() < blocks_.size() * GptBlock::kScales) {
      formats.insert(formats.end(), Linear::kScaleFormats.begin(), Linear::kScaleFormats.end());
    }
    return formats;
  }
  void bind_scales(const Tensor& states) {
    scales_ = quantisation_.make_scales(scale_formats(), states);
    for (std::size_t i = 0; i < blocks_.size(); ++i) blocks_[i].bind_scales(*scales_, i * GptBlock::kScales);
  }

  bool has_embedding() const { return first_ == 0; }
  bool has_head() const { return end_ == shape_.layers; }
  bool whole() const { return has_embedding() && has_head(); }
  std::vector<ParameterSpec> stage_parameters() const {
    const std::vector<ParameterSpec> all = gpt_parameters(shape_, options_.part);
    const std::size_t end = has_embedding() ? all.size() : first_parameter(shape_, first_) + GptBlock::kParameters;
    return {all.begin() + static_cast<std::ptrdiff_t>(first_place()), all.begin() + static_cast<std::ptrdiff_t>(end)};
  }
  /// In parameters(), of what has place `of_all` among the parameters of all stages.
  std::size_t place(std::size_t of_all) const { return of_all - first_place(); }
  /// Of all stages, the first parameter that this one has.
  std::size_t first_place() const {
    if (has_head()) return 0;
    return end_ == 1 ? token_embedding(shape_) : first_parameter(shape_, end_ - 1);
  }
  std::size_t place_of_block(std::int64_t layer) const { return place(first_parameter(shape_, layer)); }

  /// Biases are summed over the passes of a step, which siblings take in turn.
  void bind_boundaries(DType gradient_type) {
    if (!has_embedding()) {
      if (shared_->before_dbias.data() == nullptr)
        shared_->before_dbias = device_.allocate(gradient_type, {shape_.width});
      before_dbias_ = shared_->before_dbias.view(gradient_type, {shape_.width});
    }
    if (!has_head()) behind_dbias_ = memory_.allocate(gradient_type, {shape_.width});
  }
  void copy_head() {
    const Shape shape{vocabulary_.padded, shape_.width};
    if (shared_->head.data() == nullptr) shared_->head = device_.allocate(device_.dtype(), shape);
    head_ = shared_->head.view(device_.dtype(), shape);
  }

  /// Where the norm of a block leaves the gradient of the bias before it, if it is that norm which does.
  Tensor dbias_before(std::int64_t layer) {
    if (layer > first_) return block(layer - 1).mlp().dbias_from_next();
    return has_embedding() || branches_give_dbias() ? Tensor{} : before_dbias_;
  }
  bool branches_give_dbias() const { return Sublayer::gives_dbias(options_.dropout, group_); }
  GptBlock& block(std::int64_t layer) { return blocks_[static_cast<std::size_t>(layer - first_)]; }
  std::int64_t rows() const { return batch_.count * batch_.source.sequence; }

  void fit_to_batch(const TokenBatch& batch) {
    DDP_CHECK(batch.count > 0 && batch.count <= options_.max_batch, "gpt: a batch of {}, at most {} fit", batch.count,
              options_.max_batch);
    DDP_CHECK(batch.source.sequence > 0 && batch.source.sequence <= shape_.sequence,
              "gpt: windows of {} tokens, there are {} positions", batch.source.sequence, shape_.sequence);
    batch_ = batch;
    if (options_.part.count > 1) {
      batch_.part = {static_cast<std::uint32_t>(vocabulary_.first), static_cast<std::uint32_t>(shape_.vocabulary)};
    }
    const BatchShape fitted{batch.count, batch.source.sequence};
    const bool fp8 = fp8_fits_ && quantisation_.fits(rows(), shape_.width);
    for (GptBlock& block : blocks_) {
      block.fit(fitted);
      block.set_fp8(fp8);
    }
    if (has_head()) final_norm_.fit(fitted);
    if (!has_embedding()) before_.shape = block(first_).norm().input.shape;
    fitted.fit(branch_);
    mlp_gradients_.fit(fitted);
    attention_gradients_.fit(fitted);
    mlp_gradients_.dinner.dtype = fp8 ? DType::e5m2 : device_.dtype();
  }

  float rate() const { return step_.training ? options_.dropout : 0.0f; }
  Dropout dropout(std::uint32_t site) const { return {rate(), options_.seed, site, batch_.order.first, batch_.step}; }
  /// Of a unit: that of the embedding is -1, of the head that behind the last block.
  std::int64_t layer_of(std::size_t unit) const {
    return first_ + static_cast<std::int64_t>(unit) - (has_embedding() ? 1 : 0);
  }
  Span part(const std::string& name) const {
    return {device_.timeline(), Lane::compute, device_.compute_stream(), name};
  }
  Dropout block_dropout(std::int64_t layer, std::uint32_t half) const {
    return dropout(kEmbeddingSite + 1 + 2 * static_cast<std::uint32_t>(layer) + half);
  }

  /// Ends with the branch that is still to be added to the residual stream: the norm behind it does so.
  void forward_block(std::int64_t layer) {
    GptBlock& current = block(layer);
    current.attention().set_dropout(block_dropout(layer, 0));
    current.mlp().set_dropout(block_dropout(layer, 1));
    enter(layer, current.norm());
    current.forward(branch_);
  }
  /// From the end of what is before block `layer` to the output of `norm`, with which the block, or the head, begins.
  void enter(std::int64_t layer, Norm& norm) {
    if (layer > first_) return block(layer - 1).mlp().add(branch_, norm);
    if (layer == 0) return norm.forward();
    norm.forward(before_, branch_, block_dropout(layer - 1, 1));
  }

  void forward_head() {
    enter(shape_.layers, final_norm_);
    for (std::int64_t first = 0; first < rows(); first += head_rows_) {
      const Tensor x = head_piece(final_norm_.output, first);
      output_layer(x, first);
      if (step_.gradient_scale != 0.0f && !leaves_room_) head_weight_gradient(x, first > 0);
    }
    if (!step_.training && scales_) scales_->forget_magnitudes();
  }
  Tensor head_piece(const Tensor& activation, std::int64_t first) const {
    const std::int64_t some = std::min(head_rows_, rows() - first);
    Tensor piece = activation.stretch(first * shape_.width, some * shape_.width);
    piece.shape = {some, shape_.width};
    return piece;
  }
  Tensor logits_of(const Tensor& x) const { return {logits_.data, logits_.dtype, {x.dim(0), vocabulary_.padded}}; }

  /// Logits and loss of the predictions from `first` on, whose final norm is x. If a backward pass follows, leaves
  /// dlogits in logits_, and the gradient of x, or this rank's term of it, in branch_.
  void output_layer(const Tensor& x, std::int64_t first) {
    const Tensor logits = logits_of(x), dlogits = step_.gradient_scale != 0.0f ? logits : Tensor{};
    {
      const Span span = part("logits");
      linear_.linear(x, head_, Tensor{}, logits);
    }
    {
      const Span span = part("cross-entropy");
      add_loss(logits, first, dlogits);
    }
    if (!dlogits) return;
    const Span span = part("d logits");
    linear_.linear_backward(Tensor{}, head_, dlogits, head_piece(branch_, first), Tensor{}, Tensor{}, false);
  }

  /// Loss and, if it has data, dlogits. Ranks that split the vocabulary exchange facts about the logits of their
  /// tokens.
  void add_loss(const Tensor& logits, std::int64_t first, const Tensor& dlogits) {
    if (group_ == nullptr) {
      return loss_.token_cross_entropy(logits, batch_, first, shape_.vocabulary, step_.gradient_scale, dlogits,
                                       step_.sums);
    }
    const Tensor mine = facts_.first(logits.dim(0));
    Tensor all = all_facts_;
    all.shape[1] = logits.dim(0);
    loss_.part_of_cross_entropy(logits, batch_, first, vocabulary_.count, mine);
    group_->run({TensorGroup::gather(mine, all)});
    loss_.joined_cross_entropy(logits, batch_, first, vocabulary_.count, all, step_.gradient_scale, dlogits,
                               step_.sums);
  }
  /// From the dlogits that are in logits_.
  void head_weight_gradient(const Tensor& x, bool accumulate) {
    const Span span = part("output layer's weight gradient");
    linear_.linear_backward(x, head_, logits_of(x), Tensor{}, dhead_, Tensor{}, accumulate);
  }

  void backward_head(bool accumulate, const Ready& ready) {
    if (leaves_room_) device_.beside([this] { head_weight_gradient(flat(final_norm_.output).first(rows()), false); });
    final_norm_.backward(branch_, Tensor{}, mlp_gradients_.dout, block(end_ - 1).mlp().dbias_from_next(), accumulate);
    ready(kFinalNorm);
    ready(kFinalNorm + 1);
  }

  void backward_block(std::int64_t layer, bool accumulate, const Ready& ready) {
    GptBlock& current = block(layer);
    if (layer < end_ - 1) current.restore(branch_);  // the last one's is there
    current.mlp().backward(mlp_gradients_, current.attention().dbias_from_next(), accumulate, ready);
    current.attention().backward(attention_gradients_, dbias_before(layer), accumulate, ready);
    std::swap(mlp_gradients_.dout, attention_gradients_.din);
  }
  /// The stage behind has the sum of the last bias gradient over the passes.
  void take_dbias() {
    const Tensor dbias = block(end_ - 1).mlp().dbias_from_next();
    if (dbias) device_.copy(dbias.data, behind_dbias_.data, dbias.bytes(), device_.compute_stream());
  }

  /// Without the weight gradients, unless there is room for them beside. They come with the embeddings' gradients.
  void backward_first_block(bool accumulate) {
    GptBlock& first = block(0);
    if (end_ > 1) first.restore(branch_);
    first.mlp().backward_data(mlp_gradients_, first.attention().dbias_from_next(), accumulate);
    if (leaves_room_) {
      device_.beside([&] { first.mlp().backward_weights(mlp_gradients_, accumulate, keep_ready()); });
    }
    first.attention().backward_data(attention_gradients_, Tensor{}, accumulate);
  }

  /// Also computes the weight gradients of block 0. They come after the embeddings' gradients, so that they overlap
  /// with the all-reduce of the embeddings, the largest of all. If there is room, both are computed at the same time.
  void backward_embedding(bool accumulate, const Ready& ready) {
    GptBlock& first = block(0);
    if (leaves_room_) {
      device_.join();  // the embedding's gradient begins with the output layer's
      device_.beside([&] { first.attention().backward_weights(attention_gradients_, accumulate, keep_ready()); });
      embedding_gradient(accumulate, ready);
      device_.join();
      for (const std::size_t parameter : std::exchange(ready_, {})) ready(parameter);
    } else {
      embedding_gradient(accumulate, ready);
      const Span span = part("h.0 weight gradients");
      first.mlp().backward_weights(mlp_gradients_, accumulate, ready);
      first.attention().backward_weights(attention_gradients_, accumulate, ready);
    }
    if (scales_) scales_->renew();
  }

  void embedding_gradient(bool accumulate, const Ready& ready) {
    const Span span = part("embedding backward");
    const std::int64_t sequence = batch_.source.sequence;
    embedding_.embed_tokens_backward(batch_, dropout(kEmbeddingSite), attention_gradients_.din, dhead_, dtokens_,
                                     dpositions_.first(sequence), accumulate);
    if (!accumulate && sequence < shape_.sequence) {
      const std::size_t used = dpositions_.first(sequence).bytes();
      device_.zero(dpositions_.as<char>() + used, dpositions_.bytes() - used, device_.compute_stream());
    }
    ready(place(token_embedding(shape_)));
    ready(place(token_embedding(shape_)) + 1);
  }
  Ready keep_ready() {
    return [this](std::size_t parameter) { ready_.push_back(parameter); };
  }

  Device& device_;
  GptOptions options_;
  std::shared_ptr<Shared> shared_;
  const ResidentTokens& text_;
  GptShape shape_;
  VocabularyRows vocabulary_;
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all of each layer.
  std::int64_t first_, end_;      ///< Blocks of the stage.
  std::vector<ParameterSpec> parameters_;
  LinearOps& linear_;
  EmbeddingOps& embedding_;
  LossOps& loss_;
  QuantisationOps& quantisation_;
  bool fp8_fits_;  ///< Whether the blocks' linear layers can multiply in FP8, and do where the batch fits, too.
  std::int64_t head_rows_;
  /// Whether batches are so small that a GPU has room for weight gradients beside other work.
  bool leaves_room_;
  Activations memory_;
  std::vector<GptBlock> blocks_;
  std::unique_ptr<Fp8Scales> scales_;  ///< Where FP8 fits.
  Norm final_norm_;
  Tensor branch_;  ///< [batch, sequence, width]: what a sublayer adds to the residual stream.
  /// All blocks share them: the gradient of a block's input is the gradient of the output of the block before it.
  SublayerGradients mlp_gradients_, attention_gradients_;  // attention_gradients_.dout is mlp_gradients_.din
  Tensor logits_;  ///< [head_rows_, padded vocabulary]; gradients of inner layers follow, or are in its memory.
  Tensor facts_, all_facts_;  ///< [head_rows_, LossOps::kFacts], and of all parts. Unused by one.
  Tensor dhead_;              ///< [padded vocabulary, width]: the output layer's part of dtokens_.
  Tensor tokens_, dtokens_, positions_, dpositions_;
  Tensor head_;                         ///< tokens_ with its padding; in a stage without embedding a copy of it.
  Tensor before_;                       ///< [batch, sequence, width]: the residual stream, from the stage before.
  Tensor before_dbias_, behind_dbias_;  ///< [width]: of the last bias before the stage, and of its own last one.
  MicroBatch step_;
  TokenBatch batch_;                ///< The same, as tokens.
  std::vector<std::size_t> ready_;  ///< Gradients of block 0 that are complete and not yet reported.
};

}  // namespace

GptStage gpt_stage(const GptShape& shape, std::int64_t stages, std::int64_t stage) {
  DDP_CHECK(stages <= shape.layers, "gpt: {} stages of {} blocks", stages, shape.layers);
  // The output layer is worth so many blocks.
  const std::vector<LayerWork> work = gpt_work(shape, Recompute::none).layers;
  const double head = work.back().forward / (work[1].forward + work[2].forward);
  const double even = (static_cast<double>(shape.layers) + head) / static_cast<double>(stages) - head;
  const std::int64_t last = std::clamp<std::int64_t>(std::llround(even), 1, shape.layers - stages + 1);
  const std::int64_t others = shape.layers - last;
  if (stage + 1 == stages) return {others, shape.layers};
  return {others * stage / (stages - 1), others * (stage + 1) / (stages - 1)};
}

std::unique_ptr<Model> make_gpt(Device& device, const GptOptions& options, ResidentTokens tokens) {
  check_shape(options.shape);
  DDP_CHECK(options.max_batch > 0, "gpt: a batch of {}", options.max_batch);
  return std::make_unique<Gpt>(device, options, std::make_shared<Shared>(Shared{std::move(tokens), {}, {}}));
}

}  // namespace ddptrain
