#pragma once

#include <cmath>
#include <type_traits>

#include "runtime/ops/optimizers/optimizer.h"

/// The rules as steps of one element. CPUs and GPUs run the same code.

namespace ddptrain {

/// The settings of one step. T is the type of master weights.
template <class T>
struct StepFactors {
  T learning_rate;
  T gradient_scale;
  T momentum;
  T beta1;
  T beta2;
  T epsilon;
  T correction1;  ///< 1 / (1 - beta1^t)
  T correction2;  ///< 1 / (1 - beta2^t)
  T muon_momentum;
  bool of_matrix;  ///< UpdateChunk::of_matrix
  T trust_ratio;   ///< lamb: of the chunk's parameter.
};

/// Adam's moments.
template <class T>
DDP_HOST_DEVICE void update_moments(const StepFactors<T>& f, T gradient, T& m, T& v) {
  m = f.beta1 * m + (T{1} - f.beta1) * gradient;
  v = f.beta2 * v + (T{1} - f.beta2) * gradient * gradient;
}

/// The part of Adam's update that comes from its moments.
template <class T>
DDP_HOST_DEVICE T direction(const StepFactors<T>& f, T m, T v) {
  using std::sqrt;
  return m * f.correction1 / (sqrt(v * f.correction2) + f.epsilon);
}

/// Rule<kind>::step() updates a weight `w` and its state, m and v, by its gradient. A rule of one slot leaves v alone.
template <OptimizerKind kKind>
struct Rule;

template <>
struct Rule<OptimizerKind::sgd> {
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T&) {
    m = f.momentum * m + gradient * f.gradient_scale + decay * w;
    w -= f.learning_rate * m;
  }
};

template <>
struct Rule<OptimizerKind::adam> {
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T& v) {
    update_moments(f, gradient * f.gradient_scale + decay * w, m, v);
    w -= f.learning_rate * direction(f, m, v);
  }
};

template <>
struct Rule<OptimizerKind::adamw> {
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T& v) {
    update_moments(f, gradient * f.gradient_scale, m, v);
    w -= f.learning_rate * (direction(f, m, v) + decay * w);
  }
};

template <>
struct Rule<OptimizerKind::lion> {
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T&) {
    gradient *= f.gradient_scale;
    const T mixed = f.beta1 * m + (T{1} - f.beta1) * gradient;
    const T sign = static_cast<T>(mixed > T{0}) - static_cast<T>(mixed < T{0});
    w -= f.learning_rate * (sign + decay * w);
    m = f.beta2 * m + (T{1} - f.beta2) * gradient;
  }
};

/// The gradients of a matrix are the direction of its update already.
template <>
struct Rule<OptimizerKind::muon> {
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T& v) {
    if (f.of_matrix) {
      w -= f.learning_rate * (gradient + decay * w);
    } else {
      Rule<OptimizerKind::adamw>::step(f, decay, gradient, w, m, v);
    }
  }
};

template <>
struct Rule<OptimizerKind::lamb> {
  /// What is multiplied by the learning rate and the trust ratio.
  template <class T>
  DDP_HOST_DEVICE static T update(const StepFactors<T>& f, T decay, T gradient, T w, T& m, T& v) {
    update_moments(f, gradient * f.gradient_scale, m, v);
    return direction(f, m, v) + decay * w;
  }
  template <class T>
  DDP_HOST_DEVICE static void step(const StepFactors<T>& f, T decay, T gradient, T& w, T& m, T& v) {
    w -= f.learning_rate * f.trust_ratio * update(f, decay, gradient, w, m, v);
  }
};

/// OptimizerOps::trust_ratios() of one parameter, from its sums of squares.
DDP_HOST_DEVICE float trust_ratio(double weights, double update) {
  if (weights == 0.0 || update == 0.0) return 1.0f;
  using std::sqrt;
  return static_cast<float>(sqrt(weights / update));
}

/// OptimizerOps::add_momentum() of one element.
template <class T>
DDP_HOST_DEVICE void add_momentum(const StepFactors<T>& f, T& gradient, T& m) {
  gradient *= f.gradient_scale;
  m = f.muon_momentum * m + gradient;
  gradient += f.muon_momentum * m;
}

/// Calls work(std::integral_constant<OptimizerKind, kind>{}).
template <std::size_t kFirst = 0, class Work>
void with_kind(OptimizerKind kind, Work&& work) {
  if constexpr (kFirst < kOptimizerRules.size()) {
    constexpr auto kKind = static_cast<OptimizerKind>(kFirst);
    if (kind == kKind) return work(std::integral_constant<OptimizerKind, kKind>{});
    with_kind<kFirst + 1>(kind, work);
  }
}

}  // namespace ddptrain
