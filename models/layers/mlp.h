#pragma once

#include <string>

#include "models/layers/sublayer.h"

namespace ddptrain {

enum class MlpActivation : std::uint8_t {
  gelu,
  swiglu,  ///< `in` has twice as many outputs: the gate, then what it gates.
};

/// Sizes and kind of an MLP. The operations of an activation are in switches without a default, here and in fp8.cpp:
/// the compiler warns of those in which a new activation is missing.
struct MlpKind {
  std::int64_t hidden = 0;  ///< Inputs of the second linear layer.
  MlpActivation activation = MlpActivation::gelu;
  bool bias = true;

  bool is_gated() const { return activation == MlpActivation::swiglu; }
  std::int64_t pre_columns() const { return is_gated() ? 2 * hidden : hidden; }
};

/// Two linear layers with an activation between them.
class Mlp final : public Sublayer {
 public:
  /// For one of `slices` slices. `restores`: restore_hidden() may be called.
  Mlp(Device& device, std::int64_t width, const MlpKind& kind, NormKind norm, std::int64_t slices, float epsilon,
      bool restores)
      : Sublayer(device, shape(width, kind, norm).slice(slices), epsilon),
        linear_(device.get<LinearOps>()),
        kind_{kind.hidden / slices, kind.activation, kind.bias},
        restores_(restores) {}
  static SublayerShape shape(std::int64_t width, const MlpKind& kind, NormKind norm = NormKind::layer) {
    return {.in = {kind.pre_columns(), width},
            .out = {width, kind.hidden},
            .blocks = kind.pre_columns() / kind.hidden,
            .in_matrices =
                std::vector<std::int64_t>(static_cast<std::size_t>(kind.pre_columns() / kind.hidden), kind.hidden),
            .in_bias = kind.bias,
            .out_bias = kind.bias,
            .norm = norm};
  }

  /// Asks for the memory of all activations but the norm's input. `normalised` and `exchanged`: see Norm::request().
  /// `hidden` is the lifetime of the activation's output. `recomputes`: restore_hidden() is called before each backward
  /// pass.
  void request(Activations& memory, const std::string& name, const Lifetime& lifetime, const Lifetime& normalised,
               const Lifetime& exchanged, const Lifetime& hidden, bool recomputes) {
    recomputes_ = recomputes;
    norm_.request(memory, name + " norm", normalised, exchanged);
    memory.add(name + " pre-activation", kind_.pre_columns(), lifetime, pre_);
    memory.add(name + " hidden", kind_.hidden, hidden, hidden_);
  }
  /// See Attention::request_cache().
  void continue_texts() {
    if (kind_.is_gated()) norm_.leave_to_reader();
  }
  void bind_scales(Fp8Scales& scales, std::size_t first) override {
    Sublayer::bind_scales(scales, first);
    hidden_.scale = out_.input_scale();
  }
  void set_fp8(bool fp8) override {
    Sublayer::set_fp8(fp8);
    hidden_.dtype = norm_.output.dtype;
  }
  void fit(const BatchShape& shape) override {
    Sublayer::fit(shape);
    shape.fit(pre_);
    shape.fit(hidden_);
  }

  /// Runs forward() up to the activation's output.
  void expand() {
    for_chunks([this](const BatchChunk& chunk) { expand(chunk); });
  }
  /// Computes the activation's output again from its input, with the same bits.
  void restore_hidden() {
    switch (kind_.activation) {
      case MlpActivation::gelu:
        return linear_.gelu(flat(pre_), flat(hidden_));
      case MlpActivation::swiglu:
        return;  // its backward pass does so itself
    }
  }

 private:
  void inner_forward(const BatchChunk& chunk, const Tensor& branch) override {
    expand(chunk);
    const Span span = this->span("mlp projection");
    project(chunk.of(hidden_), branch);
  }
  void expand(const BatchChunk& chunk) {
    const Tensor x = chunk.of(norm_.output), pre = chunk.of(pre_), hidden = chunk.of(hidden_);
    switch (kind_.activation) {
      case MlpActivation::gelu: {
        const Span span = this->span("expansion and GELU");
        return in_.forward_gelu(x, pre, hidden, restores_);
      }
      case MlpActivation::swiglu: {
        const Span span = this->span("expansion and SwiGLU");
        if (norm_.left() != nullptr) return in_.forward_swiglu(*norm_.left(), pre, hidden);
        return in_.forward_swiglu(x, pre, hidden);
      }
    }
  }
  void inner_backward(const BatchChunk& chunk, const SublayerGradients& g, const Tensor& d_branch,
                      bool accumulate) override {
    const Tensor pre = chunk.of(pre_), d_pre = chunk.of(inner_gradient(g));
    switch (kind_.activation) {
      case MlpActivation::gelu: {
        const Span span = this->span("d mlp projection and GELU");
        const Tensor dy = out_.convert(d_branch, g.d_branch_fp8, dbias_from_branch(), accumulate);
        out_.backward_gelu(dy, pre, d_pre, in_.dbias(), accumulate);
        break;
      }
      case MlpActivation::swiglu: {
        const Span span = this->span("d mlp projection and SwiGLU");
        const Tensor dy = out_.convert(d_branch, g.d_branch_fp8, dbias_from_branch(), accumulate);
        out_.backward_swiglu(dy, pre, chunk.of(g.d_activated), d_pre, recomputes_ ? chunk.of(hidden_) : Tensor{});
        break;
      }
    }
    const Span span = this->span("d expansion");
    in_.backward_data(d_pre, chunk.of(g.d_norm));
  }
  Tensor inner_output() const override { return hidden_; }
  Tensor inner_gradient(const SublayerGradients& g) const override { return in_.gradient(g.d_hidden, g.d_hidden); }
  /// backward_gelu() computes it.
  Tensor in_dbias() const override { return kind_.is_gated() ? in_.dbias() : Tensor{}; }

  LinearOps& linear_;
  MlpKind kind_;  ///< Of this slice.
  bool restores_;
  bool recomputes_ = false;  ///< hidden_ was not kept for the backward pass.
  Tensor pre_;               ///< [batch, sequence, columns], before the activation.
  Tensor hidden_;            ///< [batch, sequence, hidden], after it.
};

}  // namespace ddptrain
