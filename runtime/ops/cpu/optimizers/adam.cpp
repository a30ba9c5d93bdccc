#include "runtime/ops/cpu/optimizers/rule.h"

namespace ddptrain::cpu {

/// Moments, then weights: `coupled` decay is added to the gradient (adam), decoupled decay to the update (adamw).
template <class T, class G>
void adam(const Update<T, G>& u, const UpdateChunk& chunk, bool coupled) {
  const T decay = u.decay_of(chunk);
  const T gradient_decay = coupled ? decay : T{0};
  const T update_decay = coupled ? T{0} : decay;
  T* __restrict w = u.master + chunk.begin;
  T* __restrict m = u.state[0] + chunk.begin;
  T* __restrict v = u.state[1] + chunk.begin;
  const G* __restrict g = u.gradients + chunk.begin;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = number<T>(g[i]) * u.gradient_scale + gradient_decay * w[i];
    m[i] = u.beta1 * m[i] + (T{1} - u.beta1) * gradient;
    v[i] = u.beta2 * v[i] + (T{1} - u.beta2) * gradient * gradient;
    const T direction = m[i] * u.correction1 / (std::sqrt(v[i] * u.correction2) + u.epsilon);
    w[i] -= u.learning_rate * (direction + update_decay * w[i]);
  }
}

template <>
struct Step<OptimizerKind::adam> {
  template <class T, class G>
  static void run(const Update<T, G>& u, const UpdateChunk& chunk) {
    adam(u, chunk, true);
  }
};

template <>
struct Step<OptimizerKind::adamw> {
  template <class T, class G>
  static void run(const Update<T, G>& u, const UpdateChunk& chunk) {
    adam(u, chunk, false);
  }
};

template struct Rule<OptimizerKind::adam>;
template struct Rule<OptimizerKind::adamw>;

}  // namespace ddptrain::cpu
