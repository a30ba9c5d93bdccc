#include "runtime/ops/embedding.h"

#include "runtime/ops/cpu/batch_tokens.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

struct EmbeddingDims {
  std::int64_t batch, sequence, width, vocabulary;

  std::int64_t features() const { return sequence * width; }
  /// Place of an input in batch_tokens().
  std::size_t token(std::int64_t window, std::int64_t position) const {
    return static_cast<std::size_t>(window * (sequence + 1) + position);
  }
};

EmbeddingDims dims_of(const char* what, const TokenBatch& batch, const Tensor& activation, const Tensor& token,
                      const Tensor& position, DType dtype) {
  DDP_CHECK(token.shape.size() == 2 && position.shape.size() == 2, "{}: embeddings must have two dimensions", what);
  const EmbeddingDims d{batch.count, batch.source.sequence, token.dim(1), token.dim(0)};
  expect_tensor(activation, what, dtype, {d.batch, d.sequence, d.width});
  expect_tensor(token, what, dtype, token.shape);
  expect_tensor(position, what, dtype, {position.dim(0), d.width});
  DDP_CHECK(position.dim(0) >= d.sequence, "{}: {} positions for windows of {}", what, position.dim(0), d.sequence);
  return d;
}

class CpuEmbedding final : public EmbeddingOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                    const Dropout& dropout, const Tensor& out) override {
    const EmbeddingDims d = dims_of("embed_tokens", batch, out, token_embedding, position_embedding, dtype());
    const std::vector<std::uint32_t> tokens = batch_tokens("embed_tokens", batch, d.vocabulary);
    const bool drops = dropout.rate > 0.0f;
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* memory = drops ? scratch<T>(d.features()) : nullptr;
      parallel_each(d.batch, 16, [&](std::int64_t window, int thread) {
        T* y = out.as<T>() + window * d.features();
        for (std::int64_t position = 0; position < d.sequence; ++position) {
          RowView<T> sum(y + position * d.width, d.width);
          const std::uint32_t row = batch.part.row(tokens[d.token(window, position)]);
          if (row >= d.vocabulary) {
            sum.setZero();
            continue;
          }
          sum = ConstRowView<T>(token_embedding.as<T>() + row * d.width, d.width) +
                ConstRowView<T>(position_embedding.as<T>() + position * d.width, d.width);
        }
        if (!drops) return;
        T* factors = memory + thread * d.features();
        dropout_factors(dropout, static_cast<std::uint32_t>(window), d.features(), factors);
        RowView<T>(y, d.features()) *= ConstRowView<T>(factors, d.features());
      });
    });
  }

  /// Every thread adds up columns of its own, so the order of the sums is that of the batch.
  void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& dout, const Tensor& head,
                             const Tensor& dtoken, const Tensor& dposition, bool accumulate) override {
    const EmbeddingDims d = dims_of("embed_tokens_backward", batch, dout, dtoken, dposition, dtype());
    DDP_CHECK(head.shape.size() == 2 && head.dim(0) >= d.vocabulary, "embed_tokens_backward: head has too few rows");
    expect_tensor(head, "embed_tokens_backward: head", dtype(), {head.dim(0), d.width});
    const std::vector<std::uint32_t> tokens = batch_tokens("embed_tokens_backward", batch, d.vocabulary);
    const bool drops = dropout.rate > 0.0f;
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      T* memory = drops ? scratch<T>(d.features()) : nullptr;
      parallel(d.width, [&](std::int64_t begin, std::int64_t end, int thread) {
        const auto columns = [&](const Tensor& tensor, std::int64_t row) {
          return RowView<T>(tensor.as<T>() + row * d.width + begin, end - begin);
        };
        for (std::int64_t token = 0; token < d.vocabulary; ++token) {
          if (!accumulate) columns(dtoken, token).setZero();
          columns(dtoken, token) += columns(head, token);
        }
        for (std::int64_t position = 0; !accumulate && position < d.sequence; ++position) {
          columns(dposition, position).setZero();
        }
        T* factors = memory + thread * d.features();
        for (std::int64_t window = 0; window < d.batch; ++window) {
          if (drops) dropout_factors(dropout, static_cast<std::uint32_t>(window), d.features(), factors);
          for (std::int64_t position = 0; position < d.sequence; ++position) {
            const auto gradient = columns(dout, window * d.sequence + position);
            const auto add_to = [&](auto sum) {
              if (drops) {
                sum += gradient * ConstRowView<T>(factors + position * d.width + begin, end - begin);
              } else {
                sum += gradient;
              }
            };
            const std::uint32_t row = batch.part.row(tokens[d.token(window, position)]);
            if (row < d.vocabulary) add_to(columns(dtoken, row));
            add_to(columns(dposition, position));
          }
        }
      });
    });
    progress();
  }
};

}  // namespace

std::unique_ptr<EmbeddingOps> EmbeddingOps::on_cpu(Device& device) { return std::make_unique<CpuEmbedding>(device); }

}  // namespace ddptrain
