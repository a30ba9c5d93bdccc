#include "runtime/ops/cuda/optimizers/rule.cuh"

namespace ddptrain::cuda::optimizer {

template <>
struct Step<OptimizerKind::lion> {
  template <class W, class G>
  static __device__ __forceinline__ void element(const Update<W, G>& u, const Factors& f, float decay, float gradient,
                                                 float& w, float& m, float&) {
    const float mixed = u.beta1 * m + (1.0f - u.beta1) * gradient;
    const float sign = static_cast<float>(mixed > 0.0f) - static_cast<float>(mixed < 0.0f);
    w -= f.learning_rate * (sign + decay * w);
    m = u.beta2 * m + (1.0f - u.beta2) * gradient;
  }
};

template struct Rule<OptimizerKind::lion>;

}  // namespace ddptrain::cuda::optimizer
