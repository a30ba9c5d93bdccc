#include <algorithm>
#include <array>
#include <bit>
#include <numeric>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/reduction.h"

namespace ddptrain {

namespace {

double as_double(double value) { return value; }
double as_double(Bf16 value) { return to_float(value); }

/// to = `count` values of `from`, from element `begin` on.
template <class T>
void read(const Tensor& from, std::int64_t begin, std::int64_t count, T* to) {
  if (from.dtype == DType::bf16) {
    const Bf16* values = from.as<const Bf16>() + begin;
    for (std::int64_t i = 0; i < count; ++i) to[i] = to_float(values[i]);
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

/// `count` elements from `begin` on of the sum of `rows` rows, the first of which is `row`.
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

  void sum_of_squares(const Tensor& values, float* sum, Stream) override {
    DDP_CHECK(values.dtype == dtype() || values.dtype == DType::bf16, "sum_of_squares of {}", name_of(values.dtype));
    std::vector<double> partial(static_cast<std::size_t>(threads()), 0.0);
    const auto add = [&]<class T>(const T* all) {
      parallel(values.size(), [&](std::int64_t begin, std::int64_t end, int thread) {
        double total = 0.0;
        for (std::int64_t i = begin; i < end; ++i) {
          const double value = as_double(all[i]);
          total += value * value;
        }
        partial[static_cast<std::size_t>(thread)] = total;
      });
    };
    with_scalar([&](auto scalar) {
      if (values.dtype == DType::bf16) return add(values.as<const Bf16>());
      add(values.as<const decltype(scalar)>());
    });
    *sum = static_cast<float>(std::accumulate(partial.begin(), partial.end(), 0.0));
  }

  void clip_scale(const Tensor& squares, float max_norm, StepRef step, NonFinite* found, float* scale,
                  Stream) override {
    const auto* first = squares.as<const float>();
    const double sum = std::accumulate(first, first + squares.size(), 0.0);
    *scale = step_scale(sum, max_norm, step.value(), *found);
  }

  void add_unless_left_out(const NonFinite* found, MetricSums* mine, MetricSums* total, Stream) override {
    if (found->in_a_row == 0) {
      total->loss += mine->loss;
      total->correct += mine->correct;
      total->samples += mine->samples;
    }
    *mine = {};
  }

  void chunk_squares(const UpdateSlice& slice, const std::uint32_t* first_square, float* squares, Stream) override {
    const auto each = [&]<class T>(const T* gradients) {
      parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
        const UpdateChunk& chunk = slice.chunks[i];
        if (first_square[chunk.parameter] == kNotCounted) return;
        double total = 0.0;
        for (std::uint32_t k = 0; k < chunk.count; ++k) {
          const double value = as_double(gradients[chunk.begin + k]);
          total += value * value;
        }
        squares[first_square[chunk.parameter] + chunk.element / kChunkElements] = static_cast<float>(total);
      });
    };
    with_scalar([&](auto scalar) {
      if (slice.gradient_type == DType::bf16) return each(static_cast<const Bf16*>(slice.gradients));
      each(static_cast<const decltype(scalar)*>(slice.gradients));
    });
  }

  void add_nodes(const std::vector<Tensor>& nodes, const Tensor& sum, Stream) override {
    for (const Tensor& node : nodes) require_node(node, sum.size());
    require_node(sum, sum.size());
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
    require_node(leaves, leaves.dim(0) * sum.size());
    require_node(sum, sum.size());
    require_tree(leaves);
    add_pieces(sum, [&]<class T>(std::int64_t begin, std::int64_t count, Piece<T>& total) {
      total = subtree<T>(leaves, 0, leaves.dim(0), begin, count);
    });
  }

  std::size_t meeting_bytes() const override { return 0; }

  void meet(const PeerInboxes&, Stream) override { fail("meet: ranks on CPUs meet in their communicator"); }

 private:
  void require_node(const Tensor& node, std::int64_t size) const {
    DDP_CHECK(node.dtype == dtype() || node.dtype == DType::bf16, "a tree of {}", name_of(node.dtype));
    DDP_CHECK(node.size() == size, "{} elements in a tree of {}", node.size(), size);
  }

  /// sum = what `add` makes of each piece.
  template <class Add>
  void add_pieces(const Tensor& sum, const Add& add) {
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
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

void require_tree(const Tensor& leaves) {
  DDP_CHECK(leaves.shape.size() == 2 && std::has_single_bit(static_cast<std::uint64_t>(leaves.dim(0))),
            "add_tree: leaves are [rows, count], with a power of two of rows");
}

std::unique_ptr<ReductionOps> ReductionOps::on_cpu(Device& device) { return std::make_unique<CpuReduction>(device); }

}  // namespace ddptrain
