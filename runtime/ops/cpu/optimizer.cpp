#include <bit>
#include <cmath>
#include <numeric>

#include "runtime/core/bf16.h"
#include "runtime/core/error.h"
#include "runtime/ops/cpu/cpu_ops.h"
#include "runtime/ops/optimizer.h"

namespace ddptrain {

namespace {

template <class T>
T number(T value) {
  return value;
}
template <class T>
T number(Bf16 value) {
  return to_float(value);
}

/// The settings of one step as factors, the master arrays as T, the gradients as G.
template <class T, class G>
struct Update {
  T learning_rate, momentum, beta1, beta2, epsilon, decay, gradient_scale;
  T correction1, correction2;  ///< 1 / (1 - beta^t)
  T* master;
  T* first;
  T* second;
  const G* gradients;

  Update(const OptimizerSettings& s, const UpdateSlice& slice, std::uint64_t step)
      : learning_rate(static_cast<T>(s.schedule.at(step))),
        momentum(static_cast<T>(s.momentum)),
        beta1(static_cast<T>(s.beta1)),
        beta2(static_cast<T>(s.beta2)),
        epsilon(static_cast<T>(s.epsilon)),
        decay(static_cast<T>(s.weight_decay)),
        gradient_scale(slice.gradient_scale != nullptr ? static_cast<T>(*slice.gradient_scale) : T{1}),
        correction1(correction(s.beta1, step)),
        correction2(correction(s.beta2, step)),
        master(static_cast<T*>(slice.master)),
        first(static_cast<T*>(slice.first_moment)),
        second(static_cast<T*>(slice.second_moment)),
        gradients(static_cast<const G*>(slice.gradients)) {}

  static T correction(float beta, std::uint64_t step) {
    return static_cast<T>(1.0 / (1.0 - std::pow(static_cast<double>(beta), static_cast<double>(step + 1))));
  }
};

template <class T, class G>
void sgd(const Update<T, G>& u, const UpdateChunk& chunk) {
  const T decay = chunk.decays != 0 ? u.decay : T{0};
  T* __restrict w = u.master + chunk.begin;
  T* __restrict m = u.first + chunk.begin;
  const G* __restrict g = u.gradients + chunk.begin;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    m[i] = u.momentum * m[i] + number<T>(g[i]) * u.gradient_scale + decay * w[i];
    w[i] -= u.learning_rate * m[i];
  }
}

/// Moments, then weights: `coupled` decay is added to the gradient (adam), decoupled decay to the update (adamw).
template <class T, class G>
void adam(const Update<T, G>& u, const UpdateChunk& chunk, bool coupled) {
  const T decay = chunk.decays != 0 ? u.decay : T{0};
  const T gradient_decay = coupled ? decay : T{0};
  const T update_decay = coupled ? T{0} : decay;
  T* __restrict w = u.master + chunk.begin;
  T* __restrict m = u.first + chunk.begin;
  T* __restrict v = u.second + chunk.begin;
  const G* __restrict g = u.gradients + chunk.begin;
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    const T gradient = number<T>(g[i]) * u.gradient_scale + gradient_decay * w[i];
    m[i] = u.beta1 * m[i] + (T{1} - u.beta1) * gradient;
    v[i] = u.beta2 * v[i] + (T{1} - u.beta2) * gradient * gradient;
    const T direction = m[i] * u.correction1 / (std::sqrt(v[i] * u.correction2) + u.epsilon);
    w[i] -= u.learning_rate * (direction + update_decay * w[i]);
  }
}

/// All chunks of one parameter: moments and norms first, then the step of length trust ratio.
template <class T, class G>
void lamb(const Update<T, G>& u, const UpdateChunk* chunks, std::uint32_t chunk_count) {
  const UpdateChunk* const end = chunks + chunk_count;
  const auto direction = [&](const UpdateChunk& chunk) {
    const ConstRowView<T> m(u.first + chunk.begin, chunk.count);
    const ConstRowView<T> v(u.second + chunk.begin, chunk.count);
    const ConstRowView<T> w(u.master + chunk.begin, chunk.count);
    const T decay = chunk.decays != 0 ? u.decay : T{0};
    return RowArray<T>(m * u.correction1 / ((v * u.correction2).sqrt() + u.epsilon) + decay * w);
  };
  double weight_norm = 0.0;  // squared, as the next; summed in T only within a chunk
  double update_norm = 0.0;
  for (const UpdateChunk* chunk = chunks; chunk != end; ++chunk) {
    RowArray<T> g(chunk->count);
    for (std::uint32_t i = 0; i < chunk->count; ++i) {
      g[i] = number<T>(u.gradients[chunk->begin + i]) * u.gradient_scale;
    }
    RowView<T> m(u.first + chunk->begin, chunk->count);
    RowView<T> v(u.second + chunk->begin, chunk->count);
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

/// Index of the first chunk of every parameter in the slice, and the end.
std::vector<std::uint32_t> parameter_bounds(const UpdateSlice& slice) {
  std::vector<std::uint32_t> bounds;
  for (std::uint32_t i = 0; i < slice.chunk_count; ++i) {
    if (i == 0 || slice.chunks[i].parameter != slice.chunks[i - 1].parameter) bounds.push_back(i);
  }
  bounds.push_back(slice.chunk_count);
  return bounds;
}

/// Rounds the master weights of a chunk to bf16.
void round_weights(const OptimizerSettings& settings, const UpdateSlice& slice, const UpdateChunk& chunk,
                   std::uint64_t step) {
  const float* master = static_cast<const float*>(slice.master) + chunk.begin;
  Bf16* weights = static_cast<Bf16*>(slice.weights) + chunk.begin;
  Philox random{};
  for (std::uint32_t i = 0; i < chunk.count; ++i) {
    if (!settings.stochastic_rounding) {
      weights[i] = to_bf16(master[i]);
      continue;
    }
    if (i % 4 == 0) random = rounding_bits(settings.rounding_seed, step, chunk.parameter, chunk.element + i);
    const auto bits = std::bit_cast<std::uint32_t>(master[i]);
    weights[i] = {static_cast<std::uint16_t>(stochastic_bf16(bits, random.word[i % 4]) >> 16)};
  }
}

class CpuOptimizer final : public OptimizerOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void advance(StepState* state, std::uint32_t steps, Stream) override { state->step += steps; }

  void update(const OptimizerSettings& settings, const UpdateSlice& slice, StepRef step, Stream) override {
    const bool same = slice.weights == slice.master;
    DDP_CHECK(same ? slice.weight_type == dtype() : slice.weight_type == DType::bf16 && dtype() == DType::f32,
              "update: weights of {} beside master weights of {}", name_of(slice.weight_type), name_of(dtype()));
    DDP_CHECK(slice.gradient_type == dtype() || slice.gradient_type == DType::bf16, "update: gradients of {}",
              name_of(slice.gradient_type));
    with_scalar([&](auto scalar) {
      using T = decltype(scalar);
      if (slice.gradient_type == DType::bf16) {
        update_slice<T, Bf16>(settings, slice, step.value());
      } else {
        update_slice<T, T>(settings, slice, step.value());
      }
    });
    if (same) return;
    parallel_each(slice.chunk_count, 64,
                  [&](std::int64_t i, int) { round_weights(settings, slice, slice.chunks[i], step.value()); });
  }

  std::size_t inbox_bytes(OptimizerKind, const UpdateSlice&, int) const override { return 0; }

  void sum_and_update(const OptimizerSettings&, const UpdateSlice&, const PeerInboxes&, StepRef, Stream) override {
    fail("sum_and_update: not on CPUs");
  }

  void sum_of_squares(const Tensor& values, float* sum, Stream) override {
    DDP_CHECK(values.dtype == dtype() || values.dtype == DType::bf16, "sum_of_squares of {}", name_of(values.dtype));
    std::vector<double> partial(static_cast<std::size_t>(threads()), 0.0);
    const auto add = [&]<class T>(const T* all) {
      parallel(values.size(), [&](std::int64_t begin, std::int64_t end, int thread) {
        double total = 0.0;
        for (std::int64_t i = begin; i < end; ++i) {
          const auto value = number<double>(all[i]);
          total += value * value;
        }
        partial[static_cast<std::size_t>(thread)] = total;
      });
    };
    with_scalar([&](auto scalar) {
      if (values.dtype == DType::bf16) return add(values.as<const Bf16>());
      add(values.as<const decltype(scalar)>());
    });
    *sum = static_cast<float>(std::accumulate(partial.begin(), partial.end(), 0.0));
  }

  void clip_scale(const Tensor& squares, float max_norm, float* scale, Stream) override {
    const auto* first = squares.as<const float>();
    const double sum = std::accumulate(first, first + squares.size(), 0.0);
    *scale = std::min(1.0f, max_norm / (static_cast<float>(std::sqrt(sum)) + 1e-6f));
  }

 private:
  template <class T, class G>
  void update_slice(const OptimizerSettings& settings, const UpdateSlice& slice, std::uint64_t step) {
    const Update<T, G> u(settings, slice, step);
    if (settings.kind == OptimizerKind::lamb) {
      const std::vector<std::uint32_t> bounds = parameter_bounds(slice);
      parallel_each(static_cast<std::int64_t>(bounds.size()) - 1, 1, [&](std::int64_t i, int) {
        const std::uint32_t begin = bounds[static_cast<std::size_t>(i)];
        lamb(u, slice.chunks + begin, bounds[static_cast<std::size_t>(i) + 1] - begin);
      });
      return;
    }
    parallel_each(slice.chunk_count, 64, [&](std::int64_t i, int) {
      const UpdateChunk& chunk = slice.chunks[i];
      if (settings.kind == OptimizerKind::sgd) return sgd(u, chunk);
      adam(u, chunk, settings.kind == OptimizerKind::adam);
    });
  }
};

}  // namespace

std::unique_ptr<OptimizerOps> OptimizerOps::on_cpu(Device& device) { return std::make_unique<CpuOptimizer>(device); }

}  // namespace ddptrain
