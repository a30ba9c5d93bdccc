#include "runtime/ops/cuda/optimizers/rule.cuh"

namespace ddptrain::cuda::optimizer {

template <>
struct Step<OptimizerKind::sgd> {
  template <class W, class G>
  static __device__ __forceinline__ void element(const Update<W, G>& u, const Factors& f, float decay, float gradient,
                                                 float& w, float& m, float&) {
    m = u.momentum * m + gradient + decay * w;
    w -= f.learning_rate * m;
  }
};

template struct Rule<OptimizerKind::sgd>;

}  // namespace ddptrain::cuda::optimizer
