#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/cpu/optimizers/rule.h"

namespace ddptrain::cpu {

template <>
struct Step<OptimizerKind::lamb> {
  /// Moments and norms first, then the step of length trust ratio.
  template <class T, class G>
  static void run(const Update<T, G>& u, const UpdateChunk* chunks, std::uint32_t chunk_count) {
    const UpdateChunk* const end = chunks + chunk_count;
    const auto direction = [&](const UpdateChunk& chunk) {
      const ConstRowView<T> m(u.state[0] + chunk.begin, chunk.count);
      const ConstRowView<T> v(u.state[1] + chunk.begin, chunk.count);
      const ConstRowView<T> w(u.master + chunk.begin, chunk.count);
      return RowArray<T>(m * u.correction1 / ((v * u.correction2).sqrt() + u.epsilon) + u.decay_of(chunk) * w);
    };
    double weight_norm = 0.0;  // squared, as the next; summed in T only within a chunk
    double update_norm = 0.0;
    for (const UpdateChunk* chunk = chunks; chunk != end; ++chunk) {
      RowArray<T> g(chunk->count);
      for (std::uint32_t i = 0; i < chunk->count; ++i) {
        g[i] = number<T>(u.gradients[chunk->begin + i]) * u.gradient_scale;
      }
      RowView<T> m(u.state[0] + chunk->begin, chunk->count);
      RowView<T> v(u.state[1] + chunk->begin, chunk->count);
      m = u.beta1 * m + (T{1} - u.beta1) * g;
      v = u.beta2 * v + (T{1} - u.beta2) * g * g;
      weight_norm += ConstRowView<T>(u.master + chunk->begin, chunk->count).square().sum();
      update_norm += direction(*chunk).square().sum();
    }
    const double ratio = weight_norm > 0.0 && update_norm > 0.0 ? std::sqrt(weight_norm / update_norm) : 1.0;
    const T length = u.learning_rate * static_cast<T>(ratio);
    for (const UpdateChunk* chunk = chunks; chunk != end; ++chunk) {
      RowView<T>(u.master + chunk->begin, chunk->count) -= length * direction(*chunk);
    }
  }
};

template struct Rule<OptimizerKind::lamb>;

}  // namespace ddptrain::cpu
