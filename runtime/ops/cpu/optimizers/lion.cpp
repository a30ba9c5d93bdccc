#include "runtime/ops/cpu/optimizers/rule.h"

namespace ddptrain::cpu {

template <>
struct Step<OptimizerKind::lion> {
  template <class T, class G>
  static void run(const Update<T, G>& u, const UpdateChunk& chunk) {
    const T decay = u.decay_of(chunk);
    T* __restrict w = u.master + chunk.begin;
    T* __restrict m = u.state[0] + chunk.begin;
    const G* __restrict g = u.gradients + chunk.begin;
    for (std::uint32_t i = 0; i < chunk.count; ++i) {
      const T gradient = number<T>(g[i]) * u.gradient_scale;
      const T mixed = u.beta1 * m[i] + (T{1} - u.beta1) * gradient;
      const T sign = static_cast<T>(mixed > T{0}) - static_cast<T>(mixed < T{0});
      w[i] -= u.learning_rate * (sign + decay * w[i]);
      m[i] = u.beta2 * m[i] + (T{1} - u.beta2) * gradient;
    }
  }
};

template struct Rule<OptimizerKind::lion>;

}  // namespace ddptrain::cpu
