#include "runtime/ops/cpu/optimizers/rule.h"

namespace ddptrain::cpu {

template <>
struct Step<OptimizerKind::sgd> {
  template <class T, class G>
  static void run(const Update<T, G>& u, const UpdateChunk& chunk) {
    const T decay = u.decay_of(chunk);
    T* __restrict w = u.master + chunk.begin;
    T* __restrict m = u.state[0] + chunk.begin;
    const G* __restrict g = u.gradients + chunk.begin;
    for (std::uint32_t i = 0; i < chunk.count; ++i) {
      m[i] = u.momentum * m[i] + number<T>(g[i]) * u.gradient_scale + decay * w[i];
      w[i] -= u.learning_rate * m[i];
    }
  }
};

template struct Rule<OptimizerKind::sgd>;

}  // namespace ddptrain::cpu
