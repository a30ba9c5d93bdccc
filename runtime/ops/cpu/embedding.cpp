#include "runtime/ops/embedding.h"

#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/dropout_factors.h"

namespace ddptrain {

namespace {

struct EmbeddingDims : EmbeddingShape {
  std::int64_t features() const { return sequence * width; }
  /// Place of an input in batch_tokens().
  std::size_t token(std::int64_t window, std::int64_t position) const {
    return static_cast<std::size_t>(window * (sequence + 1) + position);
  }
};

class CpuEmbedding final : public EmbeddingOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void embed_tokens(const TokenBatch& batch, const Tensor& token_embedding, const Tensor& position_embedding,
                    const Dropout& dropout, const Tensor& out) override {
    const EmbeddingDims d{check_embed_tokens(batch, token_embedding, position_embedding, out, dtype())};
    const std::vector<std::uint32_t> tokens = batch_tokens("embed_tokens", batch, d.vocabulary);
    const bool drops = dropout.rate > 0.0f;
    const std::int64_t first_position = batch.position(0);
    with_scalar([&]<class T>(T) {
      T* memory = drops ? scratch<T>(d.features()) : nullptr;
      parallel_each(d.batch, 16, [&](std::int64_t window, int thread) {
        T* y = out.as<T>() + window * d.features();
        for (std::int64_t position = 0; position < d.sequence; ++position) {
          RowView<T> sum(y + position * d.width, d.width);
          const std::uint32_t row = batch.vocabulary_slice.row(tokens[d.token(window, position)]);
          if (row >= d.vocabulary) {
            sum.setZero();
            continue;
          }
          const ConstRowView<T> embedded(token_embedding.as<T>() + row * d.width, d.width);
          if (position_embedding) {
            sum =
                embedded + ConstRowView<T>(position_embedding.as<T>() + (first_position + position) * d.width, d.width);
          } else {
            sum = embedded;
          }
        }
        if (!drops) return;
        T* factors = memory + thread * d.features();
        dropout_factors(dropout, static_cast<std::uint32_t>(window), d.features(), factors);
        RowView<T>(y, d.features()) *= ConstRowView<T>(factors, d.features());
      });
    });
  }

  /// Each thread adds other columns, so the order of the additions is the order of the batch.
  void embed_tokens_backward(const TokenBatch& batch, const Dropout& dropout, const Tensor& d_output,
                             const Tensor& head, const Tensor& dtoken, const Tensor& dposition,
                             bool accumulate) override {
    const EmbeddingDims d{check_embed_tokens_backward(batch, d_output, head, dtoken, dposition, dtype())};
    const std::vector<std::uint32_t> tokens = batch_tokens("embed_tokens_backward", batch, d.vocabulary);
    const bool drops = dropout.rate > 0.0f;
    with_scalar([&]<class T>(T) {
      T* memory = drops ? scratch<T>(d.features()) : nullptr;
      parallel(d.width, [&](std::int64_t begin, std::int64_t end, int thread) {
        const auto columns = [&](const Tensor& tensor, std::int64_t row) {
          return RowView<T>(tensor.as<T>() + row * d.width + begin, end - begin);
        };
        for (std::int64_t token = 0; token < d.vocabulary; ++token) {
          if (!accumulate) columns(dtoken, token).setZero();
          if (head) columns(dtoken, token) += columns(head, token);
        }
        for (std::int64_t position = 0; dposition && !accumulate && position < d.sequence; ++position) {
          columns(dposition, position).setZero();
        }
        T* factors = memory + thread * d.features();
        for (std::int64_t window = 0; window < d.batch; ++window) {
          if (drops) dropout_factors(dropout, static_cast<std::uint32_t>(window), d.features(), factors);
          for (std::int64_t position = 0; position < d.sequence; ++position) {
            const auto gradient = columns(d_output, window * d.sequence + position);
            const auto add_to = [&](auto sum) {
              if (drops) {
                sum += gradient * ConstRowView<T>(factors + position * d.width + begin, end - begin);
              } else {
                sum += gradient;
              }
            };
            const std::uint32_t row = batch.vocabulary_slice.row(tokens[d.token(window, position)]);
            if (row < d.vocabulary) add_to(columns(dtoken, row));
            if (dposition) add_to(columns(dposition, position));
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
