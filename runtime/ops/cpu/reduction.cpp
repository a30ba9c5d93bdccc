#include <algorithm>
#include <array>
#include <numeric>

#include "runtime/core/bf16.h"
#include "runtime/core/clocked.h"
#include "runtime/core/error.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/reduction.h"

namespace ddptrain {

namespace {

/// Sum of the squares of values[begin .. end).
template <class T>
double square_sum(const T* values, std::int64_t begin, std::int64_t end) {
  double total = 0.0;
  for (std::int64_t i = begin; i < end; ++i) {
    const double value = to_number<double>(values[i]);
    total += value * value;
  }
  return total;
}

/// to = `count` values of `from`, from element `begin` on.
template <class T>
void read(const Tensor& from, std::int64_t begin, std::int64_t count, T* to) {
  if (from.dtype == DType::bf16) {
    std::transform(from.as<const Bf16>() + begin, from.as<const Bf16>() + begin + count, to, to_number<T, Bf16>);
  } else {
    std::copy_n(from.as<const T>() + begin, count, to);
  }
}

template <class T>
void write(const T* from, std::int64_t begin, std::int64_t count, const Tensor& to) {
  if (to.dtype == DType::bf16) {
    for (std::int64_t i = 0; i < count; ++i) to.as<Bf16>()[begin + i] = to_bf16(static_cast<float>(from[i]));
  } else {
    std::copy_n(from, count, to.as<T>() + begin);
  }
}

constexpr std::int64_t kPiece = 256;  // elements that are added at once
template <class T>
using Piece = std::array<T, kPiece>;

/// Elements `begin` to `begin + count` of the sum of `rows` rows, which begin with `row`.
template <class T>
Piece<T> subtree(const Tensor& leaves, std::int64_t row, std::int64_t rows, std::int64_t begin, std::int64_t count) {
  Piece<T> sum;
  if (rows == 1) {
    read(leaves, row * leaves.dim(1) + begin, count, sum.data());
    return sum;
  }
  sum = subtree<T>(leaves, row, rows / 2, begin, count);
  const Piece<T> right = subtree<T>(leaves, row + rows / 2, rows / 2, begin, count);
  for (std::int64_t i = 0; i < count; ++i) sum[static_cast<std::size_t>(i)] += right[static_cast<std::size_t>(i)];
  return sum;
}

class CpuReduction final : public ReductionOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void sums_of_squares(const std::vector<SumOfSquares>& sums) override {
    for (const SumOfSquares& one : sums) {
      const Tensor& values = one.values;
      check_nodes("sums_of_squares", {values}, values, dtype());
      DDP_CHECK(values.dtype == sums[0].values.dtype, "sums_of_squares of values of two types");
      std::vector<double> partial(static_cast<std::size_t>(threads()), 0.0);
      with_values(values.dtype, [&](auto element) {
        parallel(values.size(), [&](std::int64_t begin, std::int64_t end, int thread) {
          partial[static_cast<std::size_t>(thread)] = square_sum(values.as<const decltype(element)>(), begin, end);
        });
      });
      *one.sum = static_cast<float>(std::accumulate(partial.begin(), partial.end(), 0.0));
    }
  }

  void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                  Stream) override {
    const auto* first = squares.as<const float>();
    const double sum = std::accumulate(first, first + squares.size(), 0.0);
    *scale = step_scale(sum, max_norm, step.value(), *found);
    step.state->log.note_norm(step.value() + 1, std::sqrt(sum));
  }

  void log_norm(const Tensor& squares, StepState* state, Stream) override {
    const auto* first = squares.as<const float>();
    state->log.note_norm(state->step, std::sqrt(std::accumulate(first, first + squares.size(), 0.0)));
    state->log.end_pause(steady_nanoseconds());
  }

  void add_unless_left_out(StepRef step, MetricSums* mine, MetricSums* total, Stream) override {
    if (step.state->nonfinite.in_a_row == 0) {
      total->loss += mine->loss;
      total->correct += mine->correct;
      total->samples += mine->samples;
    }
    *mine = {};
    step.note_sums(total);
  }

  void chunk_squares(const std::vector<UpdateSlice>& slices, const std::uint32_t* first_square,
                     float* squares) override {
    for (const UpdateSlice& slice : slices) {
      DDP_CHECK(slice.gradient_type == slices[0].gradient_type, "chunk_squares of gradients of two types");
      with_values(slice.gradient_type, [&](auto element) {
        const auto* gradients = static_cast<const decltype(element)*>(slice.gradients);
        parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
          const UpdateChunk& chunk = slice.chunks[i];
          if (first_square[chunk.parameter] == kNotCounted) return;
          const auto begin = static_cast<std::int64_t>(chunk.offset_from(slice.position));
          squares[first_square[chunk.parameter] + chunk.element / kChunkElements] =
              static_cast<float>(square_sum(gradients, begin, begin + chunk.count));
        });
      });
    }
  }

  void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream) override {
    check_nodes("add_nodes", nodes, sum, dtype());
    add_pieces(sum, [&]<class T>(std::int64_t begin, std::int64_t count, Piece<T>& total) {
      Piece<T> next;
      read(nodes.at(0), begin, count, total.data());
      for (std::size_t n = 1; n < nodes.size(); ++n) {
        read(nodes[n], begin, count, next.data());
        for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) total[i] += next[i];
      }
    });
  }

  void add_tree(const Tensor& leaves, const Tensor& sum, Stream) override {
    check_add_tree(leaves, sum, dtype());
    add_pieces(sum, [&]<class T>(std::int64_t begin, std::int64_t count, Piece<T>& total) {
      total = subtree<T>(leaves, 0, leaves.dim(0), begin, count);
    });
  }

  std::size_t meeting_bytes() const override { return 0; }

  void meet(const PeerInboxes&, Stream) override { fail("meet: ranks on CPUs meet in their communicator"); }

 private:
  /// Calls work(V{}), V being the type of values of `type`: bf16, or the scalar of dtype().
  template <class Work>
  void with_values(DType type, Work&& work) {
    if (type == DType::bf16) {
      work(Bf16{});
      return;
    }
    with_scalar(work);
  }

  /// sum = what `add` makes of each piece.
  template <class Add>
  void add_pieces(const Tensor& sum, const Add& add) {
    with_scalar([&]<class T>(T) {
      parallel_each((sum.size() + kPiece - 1) / kPiece, 64, [&](std::int64_t piece, int) {
        const std::int64_t begin = piece * kPiece;
        const std::int64_t count = std::min(kPiece, sum.size() - begin);
        Piece<T> total;
        add(begin, count, total);
        write(total.data(), begin, count, sum);
      });
    });
  }
};

}  // namespace

std::unique_ptr<ReductionOps> ReductionOps::on_cpu(Device& device) { return std::make_unique<CpuReduction>(device); }

}  // namespace ddptrain
