#pragma once

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "models/layers/rotary.h"
#include "models/layers/sublayer.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/cached_attention.h"
#include "runtime/ops/grouped_attention.h"

namespace ddptrain {

/// Sizes and kind of an attention layer.
struct AttentionKind {
  std::int64_t heads = 0;
  std::int64_t key_heads = 0;  ///< Heads of keys and values; it divides `heads`.
  std::int64_t head_size = 0;
  Rotary rotary = {};
  bool normalises_heads = false;  ///< RMS norms of queries and keys.
  bool qkv_bias = true;
  bool output_bias = true;

  /// Whether `in` writes queries, keys and values group by group: see GroupedHeads. Otherwise first all queries, then
  /// all keys, then all values: see AttentionOps.
  bool is_grouped() const { return key_heads != heads || rotary.turns() || normalises_heads; }
  AttentionKind slice(std::int64_t slices) const {
    AttentionKind kind = *this;
    kind.heads /= slices;
    kind.key_heads /= slices;
    return kind;
  }
  std::int64_t width() const { return heads * head_size; }
  std::int64_t qkv_columns() const { return (heads + 2 * key_heads) * head_size; }
  /// Queries, keys and values in the weight of `in`: see ParameterSpec::matrix_rows.
  std::vector<std::int64_t> matrices() const {
    if (!is_grouped()) return {width(), width(), width()};
    return {heads / key_heads * head_size, head_size, head_size};
  }
};

/// Causal self-attention: `in` computes queries, keys and values; `out` is the projection.
class Attention final : public Sublayer {
 public:
  /// For one of `slices` slices of the heads.
  Attention(Device& device, std::int64_t width, const AttentionKind& kind, NormKind norm, std::int64_t slices,
            float epsilon)
      : Sublayer(device, shape(width, kind, norm).slice(slices), epsilon),
        attention_(kind.is_grouped() ? nullptr : &device.get<AttentionOps>()),
        grouped_(kind.is_grouped() ? &device.get<GroupedAttentionOps>() : nullptr),
        quantisation_(device.get<QuantisationOps>()),
        reduction_(device.get<ReductionOps>()),
        kind_(kind.slice(slices)),
        epsilon_(epsilon) {
    if (kind_.rotary.turns()) keep_frequencies();
  }
  static SublayerShape shape(std::int64_t width, const AttentionKind& kind, NormKind norm = NormKind::layer) {
    return {.in = {kind.qkv_columns(), width},
            .out = {width, kind.width()},
            .blocks = kind.is_grouped() ? 1 : 3,
            .in_matrices = kind.matrices(),
            .in_bias = kind.qkv_bias,
            .out_bias = kind.output_bias,
            .norm = norm};
  }

  /// With norms of queries and keys, their weights follow the parameters of a Sublayer.
  std::size_t parameters() const override { return Sublayer::parameters() + (kind_.normalises_heads ? 2 : 0); }
  void bind(const ModelTensors& tensors, std::size_t first) override {
    Sublayer::bind(tensors, first);
    if (!kind_.normalises_heads) return;
    const std::size_t query = first + Sublayer::parameters();
    query_weight_ = tensors.weights.at(query);
    dquery_weight_ = tensors.gradients.at(query);
    key_weight_ = tensors.weights.at(query + 1);
    dkey_weight_ = tensors.gradients.at(query + 1);
  }

  /// Asks for the memory of all activations but the norm's input. `normalised` and `exchanged`: see Norm::request().
  void request(Activations& memory, const std::string& name, const Lifetime& lifetime, const Lifetime& normalised,
               const Lifetime& exchanged) {
    norm_.request(memory, name + " norm", normalised, exchanged);
    memory.add(name + " qkv", kind_.qkv_columns(), lifetime, qkv_);
    memory.add(name + " attended", kind_.width(), lifetime, attended_);
    memory.add_statistics(name + " statistics", {memory.batch(), kind_.heads, memory.sequence()}, lifetime,
                          statistics_);
    if (!kind_.normalises_heads) return;
    memory.add(name + " qkv before norm", kind_.qkv_columns(), lifetime, projected_);
    memory.add_statistics(name + " head statistics",
                          {memory.batch() * memory.sequence(), kind_.heads + kind_.key_heads}, lifetime,
                          head_statistics_);
    memory.add_statistics(name + " head gradients", {2, kind_.head_size}, lifetime, partial_);
  }
  /// Also asks for a cache of keys and values of `positions` rows per window. Passes then continue texts: they attend
  /// to the rows of earlier passes, and have no backward pass.
  void request_cache(Activations& memory, const std::string& name, std::int64_t positions, const Lifetime& always) {
    cached_ = &device_.get<CachedAttentionOps>();
    norm_.leave_to_reader();
    const Shape shape{memory.batch(), positions, kind_.key_heads * kind_.head_size};
    memory.add(name + " keys", device_.dtype(), shape, always, keys_);
    memory.add(name + " values", device_.dtype(), shape, always, values_);
  }
  void request_fp8(Activations& memory, const std::string& name, const Lifetime& weights,
                   const Lifetime& activations) override {
    Sublayer::request_fp8(memory, name, weights, activations);
    memory.add(name + " attended fp8", DType::e4m3, kind_.width(), activations, attended_fp8_);
  }
  void bind_scales(Fp8Scales& scales, std::size_t first) override {
    Sublayer::bind_scales(scales, first);
    attended_fp8_.scale = out_.input_scale();
  }

  void fit(const BatchShape& shape) override {
    Sublayer::fit(shape);
    first_position_ = shape.first_position;
    shape.fit(qkv_);
    shape.fit(attended_);
    if (attended_fp8_) shape.fit(attended_fp8_);
    statistics_.shape = {shape.batch, kind_.heads, shape.sequence};
    if (!kind_.normalises_heads) return;
    shape.fit(projected_);
    head_statistics_.shape = {shape.rows(), kind_.heads + kind_.key_heads};
  }

 private:
  void inner_forward(const BatchChunk& chunk, const Tensor& branch) override {
    {
      const Span span = this->span("qkv");
      const Tensor y = chunk.of(kind_.normalises_heads ? projected_ : qkv_);
      norm_.left() != nullptr ? in_.forward(*norm_.left(), y) : in_.forward(chunk.of(norm_.output), y);
    }
    {
      const Span span = this->span("attention");
      attend(chunk);
    }
    const Span span = this->span("attention projection");
    if (out_.fp8()) quantisation_.to_fp8(flat(attended_), flat(attended_fp8_), Tensor{}, false);
    project(chunk.of(inner_output()), branch);
  }
  void inner_backward(const BatchChunk& chunk, const SublayerGradients& g, const Tensor& d_branch,
                      bool accumulate) override {
    const Tensor d_attended = this->d_attended(chunk, g), d_hidden = chunk.of(g.d_hidden);
    {
      const Span span = this->span("d attention projection");
      out_.backward_data(out_.convert(d_branch, g.d_branch_fp8, dbias_from_branch(), accumulate), d_attended);
    }
    {
      const Span span = this->span("d attention");
      attend_backward(chunk, d_attended, d_hidden, accumulate);
    }
    const Span span = this->span("d qkv");
    in_.backward_data(in_.convert(d_hidden, g.d_hidden_fp8, in_.dbias(), accumulate), chunk.of(g.d_norm));
  }
  /// In the memory of g.d_norm, which comes last. A chunk's begins no earlier than that of d_norm: the chunk before is
  /// being exchanged.
  Tensor d_attended(const BatchChunk& chunk, const SublayerGradients& g) const {
    Tensor memory = g.d_norm;
    memory.shape.back() = std::max(memory.shape.back(), kind_.width());
    Tensor d_attended = chunk.of(memory);
    d_attended.shape = chunk.of(attended_).shape;
    return d_attended;
  }
  Tensor inner_output() const override { return out_.fp8() ? attended_fp8_ : attended_; }
  Tensor inner_gradient(const SublayerGradients& g) const override { return in_.gradient(g.d_hidden, g.d_hidden_fp8); }
  Tensor in_dbias() const override { return in_.dbias(); }

  // From the output of `in` to attended_, and back.

  void attend(const BatchChunk& chunk) {
    const Tensor qkv = chunk.of(qkv_), attended = chunk.of(attended_), statistics = chunk.of(statistics_);
    if (kind_.normalises_heads) {
      grouped_->normalise(chunk.of(projected_), heads(), query_weight_, key_weight_, epsilon_, qkv,
                          chunk.of(head_statistics_));
    }
    if (cached_ != nullptr) {
      attend_to_cache();
    } else if (grouped_ == nullptr) {
      attention_->attention(qkv, kind_.heads, attended, statistics);
    } else {
      grouped_->rotate(qkv, heads(), frequencies_, first_position_, GroupedAttentionOps::Turn::forward);
      grouped_->attention(qkv, heads(), attended, statistics);
    }
  }
  void attend_to_cache() {
    if (grouped_ == nullptr) {
      cached_->attention(qkv_, heads(), first_position_, keys_, values_, attended_);
    } else {
      cached_->rotate_and_attend(qkv_, heads(), frequencies_, first_position_, keys_, values_, attended_);
    }
  }
  void attend_backward(const BatchChunk& chunk, const Tensor& d_attended, const Tensor& d_qkv, bool accumulate) {
    const Tensor qkv = chunk.of(qkv_), attended = chunk.of(attended_), statistics = chunk.of(statistics_);
    if (grouped_ == nullptr) {
      attention_->attention_backward(qkv, kind_.heads, attended, statistics, d_attended, d_qkv);
      return;
    }
    grouped_->attention_backward(qkv, heads(), attended, statistics, d_attended, d_qkv);
    grouped_->rotate(d_qkv, heads(), frequencies_, nullptr, GroupedAttentionOps::Turn::back);
    if (kind_.normalises_heads) normalise_backward(chunk, d_qkv, accumulate);
  }
  /// Each rank has some of the heads, whose weights are the same.
  void normalise_backward(const BatchChunk& chunk, const Tensor& d_qkv, bool accumulate) {
    const Tensor x = chunk.of(projected_), statistics = chunk.of(head_statistics_);
    if (group_ == nullptr) {
      grouped_->normalise_backward(x, heads(), query_weight_, key_weight_, statistics, d_qkv, dquery_weight_,
                                   dkey_weight_, accumulate);
      return;
    }
    const Tensor dquery = partial_.stretch(0, kind_.head_size);
    const Tensor dkey = partial_.stretch(kind_.head_size, kind_.head_size);
    grouped_->normalise_backward(x, heads(), query_weight_, key_weight_, statistics, d_qkv, dquery, dkey, false);
    group_->run({TensorGroup::sum(partial_)});
    for (const auto& [mine, all] : {std::pair{dquery, dquery_weight_}, {dkey, dkey_weight_}}) {
      reduction_.add_nodes(accumulate ? std::vector{mine, all} : std::vector{mine}, all, device_.compute_stream());
    }
  }
  GroupedHeads heads() const { return {kind_.heads, kind_.key_heads, kind_.head_size}; }
  void keep_frequencies() {
    const std::vector<double> values = rotary_frequencies(kind_.rotary, kind_.head_size);
    const DType dtype = master_dtype(device_.precision());
    const Shape shape{std::ssize(values)};
    frequencies_memory_ = device_.allocate(dtype, shape);
    frequencies_ = frequencies_memory_.view(dtype, shape);
    if (dtype == DType::f64) return device_.copy_to_device(frequencies_.data, values.data(), frequencies_.bytes());
    const std::vector<float> rounded(values.begin(), values.end());
    device_.copy_to_device(frequencies_.data, rounded.data(), frequencies_.bytes());
  }

  AttentionOps* attention_;               ///< Null if heads are grouped.
  GroupedAttentionOps* grouped_;          ///< Null if not.
  CachedAttentionOps* cached_ = nullptr;  ///< Null if passes do not continue texts.
  QuantisationOps& quantisation_;
  ReductionOps& reduction_;
  AttentionKind kind_;  ///< Of this slice.
  float epsilon_;
  Tensor query_weight_;  ///< [head size]; this and the next three only with norms of queries and keys.
  Tensor key_weight_;
  Tensor dquery_weight_;
  Tensor dkey_weight_;
  Tensor qkv_;           ///< [batch, sequence, columns of queries, keys and values]
  Tensor projected_;     ///< The same before the norms of queries and keys.
  Tensor attended_;      ///< [batch, sequence, width of the heads]
  Tensor attended_fp8_;  ///< A copy. Unused without FP8.
  Tensor statistics_;    ///< [batch, heads, sequence]
  Tensor head_statistics_;
  Tensor partial_;  ///< [2, head size]: the gradients of this slice.
  Buffer frequencies_memory_;
  Tensor frequencies_;  ///< [head size / 2]: see rotary_frequencies(). Without data if there are no rotary positions.
  Tensor keys_;         ///< [batch, positions, key heads * head size]: the cache. This and the next with cached_.
  Tensor values_;
  const std::int64_t* first_position_ = nullptr;  ///< Of the rows of this pass: see TokenBatch.
};

}  // namespace ddptrain
