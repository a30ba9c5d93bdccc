#include "runtime/train/step/whole/matrix_directions.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include "runtime/core/error.h"
#include "runtime/device/timeline.h"

namespace ddptrain {
namespace {

/// With it, elements of directions are about as large as those of AdamW, so that both take the same learning rate and
/// weight decay (Liu et al. 2025, arXiv:2502.16982).
float scale_of(std::int64_t rows, std::int64_t columns) {
  return 0.2f * std::sqrt(static_cast<float>(std::max(rows, columns)));
}

std::int64_t workspace_elements(const std::vector<MatrixParameter>& parameters) {
  std::int64_t elements = 0;
  for (const MatrixParameter& parameter : parameters) {
    for (const RowBlocks& matrix : parameter.matrices) {
      elements = std::max(elements, OrthogonalOps::workspace_size(matrix.rows(parameter.rows), parameter.columns));
    }
  }
  return elements;
}

/// Buckets with matrices.
std::set<std::size_t> buckets_with(const std::vector<MatrixParameter>& parameters, const BucketPlan& plan) {
  std::set<std::size_t> buckets;
  for (const MatrixParameter& parameter : parameters) buckets.insert(plan.bucket_of[parameter.parameter]);
  return buckets;
}

}  // namespace

/// The multiplications of an iteration of Newton and Schulz.
double MatrixParameter::cost() const {
  double cost = 0.0;
  for (const RowBlocks& matrix : matrices) {
    const auto height = static_cast<double>(matrix.rows(rows));
    const auto width = static_cast<double>(columns);
    const double side = std::min(height, width);
    cost += side * side * (2.0 * std::max(height, width) + side);
  }
  return cost;
}

std::vector<MatrixParameter> matrix_parameters(const std::vector<ParameterSpec>& specs) {
  std::vector<MatrixParameter> parameters;
  for (std::size_t i = 0; i < specs.size(); ++i) {
    const ParameterSpec& spec = specs[i];
    if (spec.matrix_rows.empty()) continue;
    DDP_CHECK(!spec.split, "{}: ranks split it, and the optimizer needs whole matrices", spec.name);
    const std::int64_t rows = spec.shape.at(0);
    const std::int64_t stride = std::accumulate(spec.matrix_rows.begin(), spec.matrix_rows.end(), std::int64_t{0});
    DDP_CHECK(stride > 0 && rows % stride == 0, "{}: matrices of {} rows in a parameter of {}", spec.name, stride,
              rows);
    MatrixParameter& parameter = parameters.emplace_back(MatrixParameter{i, rows, spec.size() / rows, {}});
    std::int64_t first = 0;
    for (const std::int64_t run : spec.matrix_rows) {
      parameter.matrices.push_back({first, run, stride});
      first += run;
    }
  }
  return parameters;
}

std::vector<int> deal(const std::vector<MatrixParameter>& parameters, int ranks) {
  std::vector<std::size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::stable_sort(order, std::ranges::greater{}, [&](std::size_t i) { return parameters[i].cost(); });
  std::vector<double> work(static_cast<std::size_t>(ranks), 0.0);
  std::vector<int> owners(parameters.size());
  for (const std::size_t i : order) {
    const auto least = std::ranges::min_element(work);
    *least += parameters[i].cost();
    owners[i] = static_cast<int>(least - work.begin());
  }
  return owners;
}

MatrixDirections::MatrixDirections(const ParameterArena& arena)
    : arena_(arena),
      device_(arena.device()),
      ops_(device_.get<OrthogonalOps>()),
      parameters_(matrix_parameters(arena.specs())),
      owners_(deal(parameters_, arena.communicator().size())),
      workspace_(device_.allocate(bytes(arena))) {
  const std::vector<Tensor> gradients = arena.gradients();
  for (const MatrixParameter& parameter : parameters_) {
    gradients_.push_back(gradients[parameter.parameter]);
    gradients_.back().shape = {parameter.rows, parameter.columns};
  }
}

std::size_t MatrixDirections::bytes(const ParameterArena& arena) {
  const std::int64_t elements = workspace_elements(matrix_parameters(arena.specs()));
  return static_cast<std::size_t>(elements) * size_of(arena.device().dtype());
}

Sent MatrixDirections::sends(const ParameterArena& arena) {
  const std::vector<MatrixParameter> parameters = matrix_parameters(arena.specs());
  Sent sent{.axis = "directions", .when = "update", .times = std::ssize(parameters)};
  for (const MatrixParameter& parameter : parameters) sent.bytes += parameter.rows * parameter.columns;
  if (arena.sharding().shards > 1) {
    for (const std::size_t bucket : buckets_with(parameters, arena.plan())) {
      sent.bytes += arena.plan().buckets[bucket].size;
      ++sent.times;
    }
  }
  sent.bytes *= static_cast<std::int64_t>(size_of(arena.gradient_type()));
  return sent;
}

void MatrixDirections::find(Communicator* ranks) {
  if (ranks != nullptr) gather(*ranks);
  orthogonalise(ranks);
  if (ranks != nullptr) broadcast(*ranks);
}

void MatrixDirections::orthogonalise(const Communicator* ranks) {
  const Span span(device_.timeline(), Lane::compute, device_.compute_stream(), "directions");
  const Tensor workspace = workspace_.view(device_.dtype(), {workspace_elements(parameters_)});
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (ranks != nullptr && owners_[i] != ranks->rank()) continue;
    const MatrixParameter& parameter = parameters_[i];
    for (const RowBlocks& matrix : parameter.matrices) {
      const float scale = scale_of(matrix.rows(parameter.rows), parameter.columns);
      ops_.orthogonalise(gradients_[i], matrix, scale, workspace);
    }
  }
}

void MatrixDirections::send(Communicator& ranks) {
  gather(ranks);
  broadcast(ranks);
}

void MatrixDirections::gather(Communicator& ranks) {
  if (arena_.sharding().shards == 1) return;
  const Span span(device_.timeline(), Lane::communication, device_.compute_stream(), "gather of directions");
  for (const std::size_t bucket : buckets_with(parameters_, arena_.plan())) {
    ranks.wait(ranks.all_gather(arena_.bucket_gradients(bucket), device_.compute_stream()));
  }
}

void MatrixDirections::broadcast(Communicator& ranks) {
  if (ranks.size() == 1) return;
  const Span span(device_.timeline(), Lane::communication, device_.compute_stream(), "broadcast of directions");
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    ranks.wait(ranks.broadcast(gradients_[i], owners_[i], device_.compute_stream()));
  }
}

}  // namespace ddptrain
