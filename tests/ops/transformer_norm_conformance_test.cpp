#include "runtime/ops/activation.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/reduction.h"
#include "runtime/ops/rms_norm.h"
#include "tests/ops/transformer_conformance.h"

namespace ddptrain::tests {
namespace {

/// Widths with and without whole packs, one for each number of packs of a lane, and of warps that share a row.
const std::vector<std::int64_t> kWidths = {1, 7, 24, 64, 200, 256, 512, 768, 1000, 1280, 1600, 2048, 2056, 4100, 5128};

TEST_P(TransformerConformanceTest, LayerNorm) {
  for (const std::int64_t width : kWidths) {
    for (const std::int64_t rows : {1, 9, 67}) {
      compare(describe({rows, width}), [&](Bench& bench) -> Outputs {
        const Tensor y = bench.poisoned({rows, width});
        const Tensor statistics = put_statistics(bench, {rows, 2});
        bench.device().get<NormOps>().layer_norm(bench.put(random_values(rows * width, 1, -1.0, 3.0), {rows, width}),
                                                 put(bench, {width}, 2), put(bench, {width}, 3), kEpsilon, y,
                                                 statistics);
        return {{"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
      });
    }
  }
}

TEST_P(TransformerConformanceTest, AddLayerNorm) {
  for (const std::int64_t width : kWidths) {
    for (const float rate : {0.0f, 0.25f}) {
      const Shape shape{3, 5, width};
      compare(describe(shape, rate > 0 ? "with dropout" : ""), [&](Bench& bench) -> Outputs {
        const Tensor sum = bench.poisoned(shape);
        const Tensor y = bench.poisoned(shape);
        const Tensor statistics = put_statistics(bench, {15, 2});
        bench.device().get<NormOps>().add_layer_norm(put(bench, shape, 1, 2.0), put(bench, shape, 2),
                                                     make_dropout(bench, rate), put(bench, {width}, 3),
                                                     put(bench, {width}, 4), kEpsilon, sum, y, statistics);
        return {{"sum", bench.take(sum)}, {"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
      });
    }
  }
}

/// `count` terms of a sum, in memory of their own.
Terms put_terms(Bench& bench, const Shape& shape, int count) {
  std::vector<Tensor> terms;
  for (int i = 0; i < count; ++i) terms.push_back(put(bench, shape, 11 + static_cast<std::uint32_t>(i)));
  return Terms(std::move(terms));
}

/// Some GPU kernels add the terms themselves, others get the sum. Their bits are those of the sum in memory.
TEST_P(TransformerConformanceTest, NormsOfTermsHaveTheBitsOfNormsOfTheirSum) {
  Bench bench(*tested_);
  for (const std::int64_t width : {64, 1000, 1280, 5128}) {
    const Shape shape{3, 5, width}, rows{15, width};
    const auto add = [&](const Terms& branch) {
      const Tensor sum = bench.poisoned(shape), y = bench.poisoned(shape);
      tested_->get<NormOps>().add_layer_norm(put(bench, shape, 1, 2.0), branch, {}, put(bench, {width}, 3),
                                             put(bench, {width}, 4), kEpsilon, sum, y, put_statistics(bench, {15, 2}));
      return std::pair{bench.take(sum), bench.take(y)};
    };
    const auto backward = [&](const Terms& dy) {
      const Tensor x = put(bench, rows, 5), statistics = put_statistics(bench, {15, 1}), dx = bench.poisoned(rows),
                   dweight = bench.poisoned({width}), weight = put(bench, {width}, 3);
      tested_->get<RmsNormOps>().rms_norm(x, weight, kEpsilon, bench.poisoned(rows), statistics);
      tested_->get<RmsNormOps>().rms_norm_backward(x, weight, statistics, dy, Tensor{}, dx, dweight, Tensor{}, false);
      return std::pair{bench.take(dx), bench.take(dweight)};
    };
    const auto sum_of = [&](const Shape& of) {
      return tested_->get<ReductionOps>().add_up(put_terms(bench, of, 3), tested_->compute_stream());
    };
    EXPECT_EQ(add(put_terms(bench, shape, 3)), add(sum_of(shape))) << width;
    EXPECT_EQ(backward(put_terms(bench, rows, 3)), backward(sum_of(rows))) << width;
  }
}

/// Some kernels add the terms themselves; for others the terms are added before: of odd widths, and of more than eight.
TEST_P(TransformerConformanceTest, NormsOfSumsOfTerms) {
  for (const std::int64_t width : {7, 64, 1000, 1280, 2048, 5128}) {
    if (width > 2048 && GetParam().kind == DeviceKind::cpu) continue;
    for (const int count : {2, 3, 8, 9}) {
      const Shape shape{3, 5, width};
      const Shape rows{15, width};
      compare(describe(shape), [&](Bench& bench) -> Outputs {
        const Tensor weight = put(bench, {width}, 3), bias = put(bench, {width}, 4);
        const Tensor sum = bench.poisoned(shape), y = bench.poisoned(shape), rms_sum = bench.poisoned(shape),
                     rms_y = bench.poisoned(shape), of_layer = put_statistics(bench, {15, 2}),
                     of_rms = put_statistics(bench, {15, 1});
        auto& layer = bench.device().get<NormOps>();
        auto& rms = bench.device().get<RmsNormOps>();
        const Dropout dropout = make_dropout(bench, 0.25f);
        layer.add_layer_norm(put(bench, shape, 1, 2.0), put_terms(bench, shape, count), dropout, weight, bias, kEpsilon,
                             sum, y, of_layer);
        rms.add_rms_norm(put(bench, shape, 1, 2.0), put_terms(bench, shape, count), dropout, weight, kEpsilon, rms_sum,
                         rms_y, of_rms);
        const Tensor dx = bench.poisoned(rows), rms_dx = bench.poisoned(rows), dweight = bench.poisoned({width}),
                     dbias = bench.poisoned({width}), rms_dweight = bench.poisoned({width});
        const Tensor x = put(bench, rows, 5);
        layer.layer_norm(x, weight, bias, kEpsilon, bench.poisoned(rows), of_layer);
        layer.layer_norm_backward(x, weight, of_layer, put_terms(bench, rows, count), put(bench, rows, 6), dx, dweight,
                                  dbias, Tensor{}, false);
        rms.rms_norm(x, weight, kEpsilon, bench.poisoned(rows), of_rms);
        rms.rms_norm_backward(x, weight, of_rms, put_terms(bench, rows, count), put(bench, rows, 6), rms_dx,
                              rms_dweight, Tensor{}, false);
        return {{"sum", bench.take(sum)},     {"y", bench.take(y)},           {"rms sum", bench.take(rms_sum)},
                {"rms y", bench.take(rms_y)}, {"dx", bench.take(dx)},         {"dweight", bench.take(dweight)},
                {"dbias", bench.take(dbias)}, {"rms dx", bench.take(rms_dx)}, {"rms dweight", bench.take(rms_dweight)}};
      });
    }
  }
}

/// GPUs treat ranges of widths differently, and the CPU has one loop for all.
bool is_tested_backward(std::int64_t width, DeviceKind kind) { return kind == DeviceKind::cuda || width <= 1024; }

enum class Alias { none, dy, dresidual, no_residual };

/// Of one column alone, dx is no more than the rounding of dresidual, 0 without one: there is nothing to be relative
/// to.
Tensor put_residual(Bench& bench, Alias alias, const Shape& shape) {
  const bool has_none = alias == Alias::no_residual && shape.back() > 1;
  return has_none ? Tensor{} : put(bench, shape, 5);
}

TEST_P(TransformerConformanceTest, LayerNormBackward) {
  for (const std::int64_t width : kWidths) {
    if (!is_tested_backward(width, GetParam().kind)) continue;
    for (const GradientCase gradients : kGradientCases) {
      for (const Alias alias : {Alias::none, Alias::dy, Alias::dresidual, Alias::no_residual}) {
        const std::int64_t rows = width == 64 ? 5000 : 67;  // warps that take several rows, and one
        compare(describe({rows, width}, gradients), [&](Bench& bench) -> Outputs {
          const Shape shape{rows, width};
          const Tensor x = put(bench, shape, 1);
          const Tensor weight = put(bench, {width}, 2);
          const Tensor statistics = put_statistics(bench, {rows, 2});
          bench.device().get<NormOps>().layer_norm(x, weight, put(bench, {width}, 3), kEpsilon, bench.poisoned(shape),
                                                   statistics);
          const Tensor dy = put(bench, shape, 4);
          const Tensor dresidual = put_residual(bench, alias, shape);
          const Tensor dx = alias == Alias::dy ? dy : alias == Alias::dresidual ? dresidual : bench.poisoned(shape);
          const Tensor dweight = gradient(bench, gradients, {width});
          const Tensor dbias = gradient(bench, gradients, {width});
          const Tensor dx_sums = alias == Alias::dy ? Tensor{} : gradient(bench, gradients, {width});
          bench.device().get<NormOps>().layer_norm_backward(x, weight, statistics, dy, dresidual, dx, dweight, dbias,
                                                            dx_sums, gradients.accumulate);
          Outputs outputs = {{"dx", bench.take(dx)}, {"dweight", bench.take(dweight)}, {"dbias", bench.take(dbias)}};
          if (dx_sums) outputs.emplace_back("sums of dx", bench.take(dx_sums));
          return outputs;
        });
      }
    }
  }
}

TEST_P(TransformerConformanceTest, RmsNorm) {
  std::vector<std::int64_t> widths = kWidths;
  widths.push_back(8192);
  for (const std::int64_t width : widths) {
    for (const std::int64_t rows : {1, 9, 67}) {
      compare(describe({rows, width}), [&](Bench& bench) -> Outputs {
        const Tensor y = bench.poisoned({rows, width});
        const Tensor statistics = put_statistics(bench, {rows, 1});
        bench.device().get<RmsNormOps>().rms_norm(bench.put(random_values(rows * width, 1, -1.0, 3.0), {rows, width}),
                                                  put(bench, {width}, 2), kEpsilon, y, statistics);
        return {{"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
      });
    }
  }
}

void check_add_rms_norm(TransformerConformanceTest& test, const Shape& shape, float rate) {
  test.compare(describe(shape, rate > 0 ? "with dropout" : ""), [&](Bench& bench) -> Outputs {
    const std::int64_t width = shape.back();
    const Tensor sum = bench.poisoned(shape);
    const Tensor y = bench.poisoned(shape);
    const Tensor statistics = put_statistics(bench, {shape[0] * shape[1], 1});
    bench.device().get<RmsNormOps>().add_rms_norm(put(bench, shape, 1, 2.0), put(bench, shape, 2),
                                                  make_dropout(bench, rate), put(bench, {width}, 3), kEpsilon, sum, y,
                                                  statistics);
    return {{"sum", bench.take(sum)}, {"y", bench.take(y)}, {"statistics", bench.take(statistics)}};
  });
}

/// GPUs have a kernel of their own for up to 8 rows.
TEST_P(TransformerConformanceTest, AddRmsNorm) {
  for (const std::int64_t width : kWidths) {
    for (const float rate : {0.0f, 0.25f}) {
      check_add_rms_norm(*this, {3, 5, width}, rate);
      check_add_rms_norm(*this, {2, 4, width}, rate);
      check_add_rms_norm(*this, {1, 1, width}, rate);
    }
  }
}

TEST_P(TransformerConformanceTest, RmsNormBackward) {
  for (const std::int64_t width : {1, 7, 64, 512, 768, 1000, 1600, 2056, 4100, 5128, 8192}) {
    if (!is_tested_backward(width, GetParam().kind)) continue;
    for (const GradientCase gradients : kGradientCases) {
      for (const Alias alias : {Alias::none, Alias::dy, Alias::dresidual, Alias::no_residual}) {
        const std::int64_t rows = width == 64 ? 5000 : 67;  // warps that take several rows, and one
        compare(describe({rows, width}, gradients), [&](Bench& bench) -> Outputs {
          const Shape shape{rows, width};
          const Tensor x = put(bench, shape, 1);
          const Tensor weight = put(bench, {width}, 2);
          const Tensor statistics = put_statistics(bench, {rows, 1});
          bench.device().get<RmsNormOps>().rms_norm(x, weight, kEpsilon, bench.poisoned(shape), statistics);
          const Tensor dy = put(bench, shape, 4);
          const Tensor dresidual = put_residual(bench, alias, shape);
          const Tensor dx = alias == Alias::dy ? dy : alias == Alias::dresidual ? dresidual : bench.poisoned(shape);
          const Tensor dweight = gradient(bench, gradients, {width});
          const Tensor dx_sums = alias == Alias::dy ? Tensor{} : gradient(bench, gradients, {width});
          bench.device().get<RmsNormOps>().rms_norm_backward(x, weight, statistics, dy, dresidual, dx, dweight, dx_sums,
                                                             gradients.accumulate);
          Outputs outputs = {{"dx", bench.take(dx)}, {"dweight", bench.take(dweight)}};
          if (dx_sums) outputs.emplace_back("sums of dx", bench.take(dx_sums));
          return outputs;
        });
      }
    }
  }
}

TEST_P(TransformerConformanceTest, Dropout) {
  for (const Shape& shape : std::vector<Shape>{{1, 1}, {3, 7, 5}, {5, 9, 32}, {2, 80, 256}, {2, 3, 8}}) {
    for (const float rate : {0.0f, 0.1f, 0.9f}) {
      compare(describe(shape), [&](Bench& bench) -> Outputs {
        const Tensor x = put(bench, shape, 1);
        const Tensor y = bench.poisoned(shape);
        bench.device().get<ActivationOps>().dropout(x, make_dropout(bench, rate), y);
        bench.device().get<ActivationOps>().dropout(x, make_dropout(bench, rate), x);
        return {{"y", bench.take(y)}, {"in place", bench.take(x)}};
      });
    }
  }
}

}  // namespace
}  // namespace ddptrain::tests
