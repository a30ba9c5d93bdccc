#include "runtime/ops/cuda/attention_plans.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <compare>
#include <map>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cudnn_graph.h"

namespace ddptrain::cuda {

namespace {

using fe::graph::Graph;

enum class Pass : std::uint8_t { forward, backward, backward_unordered };
enum Uid : std::int64_t { kQ = 1, kK, kV, kOut, kStatistics, kDout, kDq, kDk, kDv };

struct Key {
  Pass pass;
  AttentionShape shape;

  auto operator<=>(const Key&) const = default;
};

/// Without a graph cuDNN cannot do it.
struct Plan {
  std::shared_ptr<Graph> graph;
  std::size_t workspace = 0;
};

/// q, k, v and their gradients lie side by side in rows of 3 width, out and dout in rows of width.
TensorRef add(Graph& graph, Uid uid, const AttentionShape& s, std::int64_t row) {
  return graph.tensor(fe::graph::Tensor_attributes()
                          .set_uid(uid)
                          .set_dim({s.batch, s.heads, s.sequence, s.head_size})
                          .set_stride({s.sequence * row, s.head_size, row, 1}));
}

void set_output(const TensorRef& tensor, Uid uid, const AttentionShape& s, std::int64_t row) {
  tensor->set_output(true)
      .set_uid(uid)
      .set_dim({s.batch, s.heads, s.sequence, s.head_size})
      .set_stride({s.sequence * row, s.head_size, row, 1});
}

template <class Attributes>
Attributes causal(const AttentionShape& s) {
  Attributes attributes;
  attributes.set_causal_mask(true).set_attn_scale(1.0f / std::sqrt(static_cast<float>(s.head_size)));
  return attributes;
}

std::shared_ptr<Graph> describe(const Key& key) {
  const AttentionShape& s = key.shape;
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(fe::DataType_t::BFLOAT16)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const std::int64_t width = s.width();
  const TensorRef q = add(*graph, kQ, s, 3 * width), k = add(*graph, kK, s, 3 * width),
                  v = add(*graph, kV, s, 3 * width);
  const std::vector<std::int64_t> statistics_dims = {s.batch, s.heads, s.sequence, 1};
  const std::vector<std::int64_t> statistics_strides = {s.heads * s.sequence, s.sequence, 1, 1};
  if (key.pass == Pass::forward) {
    auto attributes = causal<fe::graph::SDPA_attributes>(s);
    attributes.set_generate_stats(true);
    const auto [out, statistics] = graph->sdpa(q, k, v, attributes);
    set_output(out, kOut, s, width);
    statistics->set_output(true).set_uid(kStatistics).set_data_type(fe::DataType_t::FLOAT);
    statistics->set_dim(statistics_dims).set_stride(statistics_strides);
    return graph;
  }
  auto attributes = causal<fe::graph::SDPA_backward_attributes>(s);
  attributes.set_deterministic_algorithm(key.pass == Pass::backward);
  const TensorRef statistics = graph->tensor(fe::graph::Tensor_attributes()
                                                 .set_uid(kStatistics)
                                                 .set_data_type(fe::DataType_t::FLOAT)
                                                 .set_dim(statistics_dims)
                                                 .set_stride(statistics_strides));
  const auto [dq, dk, dv] =
      graph->sdpa_backward(q, k, v, add(*graph, kOut, s, width), add(*graph, kDout, s, width), statistics, attributes);
  set_output(dq, kDq, s, 3 * width);
  set_output(dk, kDk, s, 3 * width);
  set_output(dv, kDv, s, 3 * width);
  return graph;
}

}  // namespace

struct AttentionPlans::Impl {
  cudaStream_t stream;
  Scratch& scratch;
  CudnnHandle handle;
  std::map<Key, Plan> plans;

  const Plan& plan(const Key& key);
  Plan make_plan(const Key& key) const;
  fe::error_t build(Graph& graph) const;
  bool run(const Key& key, const AttentionTensors& tensors);
};

fe::error_t AttentionPlans::Impl::build(Graph& graph) const {
  fe::error_t status = graph.validate();
  if (status.is_good()) status = graph.build_operation_graph(handle.get());
  if (status.is_good()) status = graph.create_execution_plans({fe::HeurMode_t::A});
  if (status.is_good()) status = graph.check_support();
  return status.is_good() ? graph.build_plans() : status;
}

Plan AttentionPlans::Impl::make_plan(const Key& key) const {
  DDP_CHECK(!is_capturing(stream), "attention of this shape must run once before it is captured in a graph");
  const std::shared_ptr<Graph> graph = describe(key);
  fe::error_t status = build(*graph);
  if (status.is_bad()) {
    const AttentionShape& s = key.shape;
    spdlog::debug("cuDNN has no attention for {} x {} x {} x {}: {}", s.batch, s.heads, s.sequence, s.head_size,
                  status.get_message());
    return {};
  }
  std::int64_t workspace = 0;
  DDP_CUDNN(graph->get_workspace_size(workspace));
  return {graph, static_cast<std::size_t>(workspace)};
}

const Plan& AttentionPlans::Impl::plan(const Key& key) {
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(key)).first;
  return found->second;
}

bool AttentionPlans::Impl::run(const Key& key, const AttentionTensors& t) {
  const Plan& chosen = plan(key);
  if (!chosen.graph) return false;
  const std::int64_t bytes = key.shape.width() * 2;
  const auto part = [&](void* base, int index) -> void* { return static_cast<char*>(base) + index * bytes; };
  std::unordered_map<std::int64_t, void*> pointers = {
      {kQ, t.qkv}, {kK, part(t.qkv, 1)}, {kV, part(t.qkv, 2)}, {kOut, t.out}, {kStatistics, t.statistics}};
  if (key.pass != Pass::forward) {
    pointers.insert({{kDout, t.dout}, {kDq, t.dqkv}, {kDk, part(t.dqkv, 1)}, {kDv, part(t.dqkv, 2)}});
  }
  DDP_CUDNN(chosen.graph->execute(handle.get(), pointers, scratch.reserve(chosen.workspace, stream)));
  return true;
}

AttentionPlans::AttentionPlans(cudaStream_t stream, Scratch& scratch)
    : impl_(new Impl{stream, scratch, CudnnHandle(), {}}) {
  DDP_CHECK(!is_capturing(stream), "attention must run once before it is captured in a graph");
  DDP_CUDNN(cudnnCreate(impl_->handle.out()));
  DDP_CUDNN(cudnnSetStream(impl_->handle.get(), stream));
}

AttentionPlans::~AttentionPlans() = default;

bool AttentionPlans::forward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return impl_->run({Pass::forward, shape}, tensors);
}

bool AttentionPlans::backward(const AttentionShape& shape, const AttentionTensors& tensors, bool deterministic) {
  return impl_->run({deterministic ? Pass::backward : Pass::backward_unordered, shape}, tensors);
}

}  // namespace ddptrain::cuda
