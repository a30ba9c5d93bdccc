#include "runtime/ops/cuda/optimizers/rule.cuh"

namespace ddptrain::cuda::optimizer {

template <>
struct Step<OptimizerKind::adam> {
  template <class W, class G>
  static __device__ __forceinline__ void element(const Update<W, G>& u, const Factors& f, float decay, float gradient,
                                                 float& w, float& m, float& v) {
    gradient += decay * w;
    update_moments(u, gradient, m, v);
    w -= f.learning_rate * direction(u, f, m, v);
  }
};

template <>
struct Step<OptimizerKind::adamw> {
  template <class W, class G>
  static __device__ __forceinline__ void element(const Update<W, G>& u, const Factors& f, float decay, float gradient,
                                                 float& w, float& m, float& v) {
    update_moments(u, gradient, m, v);
    w -= f.learning_rate * (direction(u, f, m, v) + decay * w);
  }
};

template struct Rule<OptimizerKind::adam>;
template struct Rule<OptimizerKind::adamw>;

}  // namespace ddptrain::cuda::optimizer
