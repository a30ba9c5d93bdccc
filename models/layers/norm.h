#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "models/layers/activations.h"
#include "models/layers/parameters.h"
#include "runtime/comm/tensor_group.h"
#include "runtime/core/error.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/ops/rms_norm.h"
#include "runtime/train/model.h"

namespace ddptrain {

/// Layer norm or RMS norm of the residual stream (add_norm()): parameters, their gradients, and the activations of a
/// batch.
///
/// Ranks that split layers also divide the rows of the stream (sequence parallelism: Korthikanti et al., "Reducing
/// activation recomputation", arXiv:2205.05198). A swap brings each rank the terms of its rows of the branch. The rank
/// adds and normalises them, and an all-gather gives the output to all ranks. The backward pass does the same with the
/// gradients of output and input. All this happens chunk by chunk in TensorGroup::exchange(): the reader of `output`
/// awaits a chunk.
class Norm {
 public:
  Norm(Device& device, NormKind kind, std::int64_t width, float epsilon)
      : device_(device),
        layer_(kind == NormKind::layer ? &device.get<NormOps>() : nullptr),
        rms_(kind == NormKind::rms ? &device.get<RmsNormOps>() : nullptr),
        reduction_(device.get<ReductionOps>()),
        width_(width),
        epsilon_(epsilon) {}

  std::size_t parameters() const { return layer_ != nullptr ? 2 : 1; }
  void bind(const ModelTensors& tensors, std::size_t first) {
    weight_ = tensors.weights.at(first);
    dweight_ = tensors.gradients.at(first);
    group_ = tensors.group;
    if (layer_ == nullptr) return;
    bias_ = tensors.weights.at(first + 1);
    dbias_ = tensors.gradients.at(first + 1);
  }

  /// Asks for the memory of `input`.
  void request_input(Activations& memory, const std::string& name, const Lifetime& lifetime) {
    memory.add_rows(name + " input", width_, lifetime, input);
  }
  /// Asks for the memory of `output`, and of what the backward pass needs besides `input`. `exchanged` is the lifetime
  /// of the terms that a rank receives.
  void request(Activations& memory, const std::string& name, const Lifetime& lifetime, const Lifetime& exchanged) {
    memory.add(name + " output", width_, lifetime, output);
    memory.add_statistics(name + " statistics", {memory.slice_rows(), statistics()}, lifetime, statistics_);
    if (memory.slices() == 1) return;
    memory.add(name + " terms", width_, exchanged, terms_);
    memory.add_statistics(name + " partial gradients",
                          {memory.slices(), static_cast<std::int64_t>(parameters()), width_}, lifetime, partial_);
  }
  void fit(const BatchShape& shape) {
    const std::int64_t slices = group_ == nullptr ? 1 : group_->ranks().size();
    shape_ = shape;
    chunks_ = shape.chunks(slices);
    const auto chunks = static_cast<std::int64_t>(chunks_.size());
    own_ = BatchShape{shape.batch / chunks, shape.sequence}.slice(slices);
    input.shape = {chunks * own_.batch, own_.sequence, width_};
    shape.fit(output);
    if (terms_) shape.fit(terms_);
    statistics_.shape = {chunks * own_.rows(), statistics()};
  }
  const std::vector<BatchChunk>& chunks() const { return chunks_; }  ///< Of the pass. One if no ranks divide rows.
  Tensor input;   ///< The stream: [batch, sequence, width], or this rank's rows of each chunk.
  Tensor output;  ///< [batch, sequence, width]; may be e4m3.

  /// forward() with a branch then leaves the norm to the linear layer that reads its output, if it is an RMS norm.
  void leave_to_reader() { left_to_reader_ = rms_ != nullptr; }
  /// What it has left. Null: `output` has been written.
  const AddedNorm* left() const { return left_ ? &*left_ : nullptr; }

  /// output = norm(input)
  void forward() {
    left_.reset();
    for (const BatchChunk& chunk : chunks_) {
      exchange(chunk, [&] {
        const Tensor y = chunk.of(output);
        await_weights();
        normalise(chunk, own(y));
        gather(y);
      });
    }
  }
  /// input = residual + dropout(branch); output = norm(input). `residual` has the shape of `input`, `branch` the shape
  /// of `output`. If ranks divide rows, each has a term of the branch, or with `is_summed` its rows of the sum.
  void forward(const Tensor& residual, const Tensor& branch, const Dropout& dropout, bool is_summed = false) {
    left_.reset();
    if (left_to_reader_ && group_ == nullptr && dropout.rate <= 0.0f) {
      left_ = {residual, branch, weight_, epsilon_, input, output, statistics_};
      return;
    }
    for (const BatchChunk& chunk : chunks_) {
      exchange(chunk, [&] {
        const Tensor y = chunk.of(output);
        const Terms added = is_summed ? Terms(own(chunk.of(branch))) : terms(chunk, branch);
        await_weights();
        add_and_normalise(chunk, chunk.of(residual), added, dropout, own(y));
        is_summed ? gather(y) : gather_after_swap({y});
      });
    }
  }
  /// For ranks that divide rows: leaves each with its rows of the sum of the branch, for forward() in the next stage.
  void sum_branch(const Tensor& branch) {
    if (group_ == nullptr) return;
    for (const BatchChunk& chunk : chunks_) {
      exchange(chunk, [&] { reduction_.add_up(terms(chunk, branch), device_.compute_stream()); });
    }
    group_->await_all();
  }
  /// d_input = d_residual (if it has data) + the gradient through the norm. All have the shape of `output`. For
  /// `d_input_sums` see NormOps; it has no data if ranks divide rows. In the last chunk, `first` overlaps with the swap
  /// of d_output's terms, and `second` with the all-gather of d_input. Without a group neither is called.
  using Work = std::function<void()>;
  void backward(const Tensor& d_output, const Tensor& d_residual, const Tensor& d_input, const Tensor& d_input_sums,
                bool accumulate, const Work& first = {}, const Work& second = {}) {
    if (group_ != nullptr) {
      backward_rows(d_output, d_residual, d_input, accumulate, first, second);
      return;
    }
    normalise_backward({}, d_output, d_residual, d_input, {dweight_, dbias_}, d_input_sums, accumulate);
  }
  /// This rank's rows of an activation, chunk by chunk.
  std::vector<Tensor> own_rows(const Tensor& activation) const {
    std::vector<Tensor> rows;
    for (const BatchChunk& chunk : chunks_) rows.push_back(own(chunk.of(activation)));
    return rows;
  }

 private:
  struct Gradients {
    Tensor weight;
    Tensor bias;  ///< Without data for an RMS norm.
  };

  void backward_rows(const Tensor& d_output, const Tensor& d_residual, const Tensor& d_input, bool accumulate,
                     const Work& first, const Work& second) {
    const Tensor mine = group_->own(partial_);
    const Tensor dweight = mine.stretch(0, width_);
    const Tensor dbias = layer_ != nullptr ? mine.stretch(width_, width_) : Tensor{};
    std::unique_ptr<Event> before;  // the gradients from the chunk before, to which those of a chunk are added
    for (const BatchChunk& chunk : chunks_) {
      exchange(chunk, [&] {
        const Tensor dx = chunk.of(d_input);
        const Terms dy = terms(chunk, d_output, chunk.is_last() ? first : Work{});
        if (before) device_.wait_until(device_.compute_stream(), *before);
        normalise_backward(chunk, dy, own(chunk.of(d_residual)), own(dx), {dweight, dbias}, Tensor{},
                           !chunk.is_first());
        if (!chunk.is_last()) before = device_.mark(device_.compute_stream());
        chunk.is_last() ? gather_after_swap({dx, partial_}, second) : gather_after_swap({dx});
      });
    }
    group_->await_all();
    add_partials(dweight_, 0, accumulate);
    if (dbias_) add_partials(dbias_, width_, accumulate);
  }
  /// all (+)= the ranks' partial gradients that begin at `first`. Ranks add them in the same order.
  void add_partials(const Tensor& all, std::int64_t first, bool accumulate) {
    std::vector<Tensor> of_ranks;
    const std::int64_t size = partial_.size() / group_->ranks().size();
    for (int rank = 0; rank < group_->ranks().size(); ++rank) {
      of_ranks.push_back(partial_.stretch(rank * size + first, width_));
    }
    if (accumulate) of_ranks.push_back(all);
    reduction_.add_nodes(of_ranks, all, device_.compute_stream());
  }

  // The two kinds of norms.
  std::int64_t statistics() const { return layer_ != nullptr ? 2 : 1; }  ///< Numbers per row.
  void normalise(const BatchChunk& chunk, const Tensor& y) {
    const Span span = this->span("norm");
    const Tensor x = chunk.of(input), statistics = chunk.of(statistics_);
    if (rms_ != nullptr) {
      rms_->rms_norm(x, weight_, epsilon_, y, statistics);
      return;
    }
    layer_->layer_norm(x, weight_, bias_, epsilon_, y, statistics);
  }
  void add_and_normalise(const BatchChunk& chunk, const Tensor& residual, const Terms& branch, const Dropout& dropout,
                         const Tensor& y) {
    const Span span = this->span("add and norm");
    const Dropout mine = of_own(chunk, dropout);
    const Tensor x = chunk.of(input), statistics = chunk.of(statistics_);
    if (rms_ != nullptr) {
      rms_->add_rms_norm(residual, branch, mine, weight_, epsilon_, x, y, statistics);
      return;
    }
    layer_->add_layer_norm(residual, branch, mine, weight_, bias_, epsilon_, x, y, statistics);
  }
  void normalise_backward(const BatchChunk& chunk, const Terms& dy, const Tensor& d_residual, const Tensor& dx,
                          const Gradients& gradients, const Tensor& dx_sums, bool accumulate) {
    const Span span = this->span("d norm");
    const Tensor x = chunk.of(input), statistics = chunk.of(statistics_);
    if (rms_ != nullptr) {
      rms_->rms_norm_backward(x, weight_, statistics, dy, d_residual, dx, gradients.weight, dx_sums, accumulate);
      return;
    }
    layer_->layer_norm_backward(x, weight_, statistics, dy, d_residual, dx, gradients.weight, gradients.bias, dx_sums,
                                accumulate);
  }

  // Steps of ranks that divide rows. Without a group, exchange() only calls `work`, terms() and own() return all that
  // they are given, and gather() does nothing.
  void exchange(const BatchChunk& chunk, const Work& work) {
    group_ != nullptr ? group_->exchange(chunk.index, output, work) : work();
  }
  /// With ZeRO-3, the communication stream gathers the weights of this norm, perhaps after the mark of the chunk.
  void await_weights() {
    if (group_ != nullptr) device_.wait_for(device_.compute_stream(), device_.communication_stream());
  }
  /// Swaps terms, and returns those of this rank's rows of a chunk of `values`, its own first. Copy engines swap. A
  /// reduce-scatter would need multiprocessors, which the layers of the other chunk occupy.
  Terms terms(const BatchChunk& chunk, const Tensor& values, const Work& during = {}) {
    if (group_ == nullptr) return values;
    const Tensor mine = chunk.of(values), of_others = chunk.of(terms_);
    group_->run({TensorGroup::swap_shards(mine, of_others)}, during);
    std::vector<Tensor> terms = {own(mine)};
    for (int rank = 0; rank < group_->ranks().size(); ++rank) {
      if (rank == group_->ranks().rank()) continue;
      Tensor& term = terms.emplace_back(of_others.stretch(rank * terms.front().size(), terms.front().size()));
      term.shape = terms.front().shape;
    }
    return Terms(std::move(terms));
  }
  void gather(const Tensor& y) {
    if (group_ != nullptr) group_->run({group_->gather(y)});
  }
  void gather_after_swap(const std::vector<Tensor>& all, const Work& during = {}) {
    if (group_ != nullptr) group_->gather_after_swap(all, during);
  }
  /// This rank's rows of a chunk of an activation.
  Tensor own(const Tensor& chunk) const {
    if (group_ == nullptr || !chunk) return chunk;
    Tensor own = group_->own(chunk);
    own.shape = {own_.batch, own_.sequence, width_};
    return own;
  }
  Dropout of_own(const BatchChunk& chunk, Dropout dropout) const {
    if (group_ == nullptr || dropout.rate <= 0.0f) return dropout;
    DDP_CHECK(own_.rows() % shape_.sequence == 0 || shape_.sequence % own_.rows() == 0,
              "norm: dropout of slices of {} rows, windows have {}", own_.rows(), shape_.sequence);
    const std::int64_t row = group_->ranks().rank() * own_.rows();
    dropout.position += chunk.first_window(shape_.batch) + static_cast<std::uint32_t>(row / shape_.sequence);
    dropout.first = static_cast<std::uint32_t>(row % shape_.sequence * width_);
    return dropout;
  }

  Span span(const char* name) const {
    return {device_.timeline(), group_ != nullptr ? Lane::communication : Lane::compute, device_.compute_stream(),
            name};
  }

  Device& device_;
  NormOps* layer_;   ///< Null: an RMS norm.
  RmsNormOps* rms_;  ///< Null: a layer norm.
  ReductionOps& reduction_;
  std::int64_t width_;
  float epsilon_;
  Tensor weight_;
  Tensor bias_;
  Tensor dweight_;
  Tensor dbias_;
  Tensor statistics_;             ///< [rows, statistics()]
  TensorGroup* group_ = nullptr;  ///< Null: this rank has all rows.
  BatchShape shape_;              ///< All rows.
  std::vector<BatchChunk> chunks_;
  BatchShape own_;  ///< This rank's rows of a chunk.
  bool left_to_reader_ = false;
  std::optional<AddedNorm> left_;
  Tensor terms_;    ///< [batch, sequence, width]: received, of this rank's rows. This and the next with a group only.
  Tensor partial_;  ///< [ranks, parameters(), width]: gradients from the rows of each rank.
};

}  // namespace ddptrain
