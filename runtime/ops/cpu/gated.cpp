#include "runtime/ops/gated.h"

#include "runtime/ops/cpu/cpu_ops.h"

namespace ddptrain {

namespace {

/// 1 / (1 + exp(-x)).
template <class T>
auto sigmoid(const ConstRowView<T>& x) {
  return (T{1} + (-x).exp()).inverse();
}

class CpuGated final : public GatedOps, CpuOps {
 public:
  using CpuOps::CpuOps;

  void swiglu(const Tensor& pre, const Tensor& y) override {
    const MatrixShape s = check_swiglu("swiglu", pre, y, {}, dtype());
    with_scalar([&]<class T>(T) {
      parallel_each(s.rows, 64, [&](std::int64_t row, int) {
        const ConstRowView<T> gate(pre.as<T>() + 2 * row * s.columns, s.columns);
        const ConstRowView<T> up(gate.data() + s.columns, s.columns);
        RowView<T>(y.as<T>() + row * s.columns, s.columns) = gate * sigmoid<T>(gate) * up;
      });
    });
  }

  void swiglu_backward(const Tensor& pre, const Tensor& dy, const Tensor& dpre, const Tensor& y) override {
    const MatrixShape s = check_swiglu("swiglu_backward", pre, dy, dpre, dtype());
    if (y) swiglu(pre, y);
    with_scalar([&]<class T>(T) {
      parallel_each(s.rows, 64, [&](std::int64_t row, int) {
        const ConstRowView<T> gate(pre.as<T>() + 2 * row * s.columns, s.columns);
        const ConstRowView<T> up(gate.data() + s.columns, s.columns);
        const ConstRowView<T> gradient(dy.as<T>() + row * s.columns, s.columns);
        RowView<T> dgate(dpre.as<T>() + 2 * row * s.columns, s.columns);
        RowView<T> dup(dgate.data() + s.columns, s.columns);
        const RowArray<T> gated = sigmoid<T>(gate);
        dup = gradient * gate * gated;
        dgate = gradient * up * gated * (T{1} + gate * (T{1} - gated));
      });
    });
  }
};

}  // namespace

std::unique_ptr<GatedOps> GatedOps::on_cpu(Device& device) { return std::make_unique<CpuGated>(device); }

}  // namespace ddptrain
