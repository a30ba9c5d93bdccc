#include "runtime/ops/cuda/attention_plans.h"

#include <spdlog/spdlog.h>

#include <cmath>
#include <compare>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cudnn_graph.h"
#include "runtime/ops/cuda/tuner.h"

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
  std::int64_t index = 0;  ///< Among cuDNN's plans for the graph.
  std::size_t workspace = 0;
  bool provisional = false;  ///< The first plan, where timing was not possible yet.
};

const char* name_of(Pass pass) {
  return pass == Pass::forward    ? "attention"
         : pass == Pass::backward ? "attention backward"
                                  : "attention backward, any order";
}

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
  TunedChoices* choices;
  CudnnHandle handle;
  std::map<Key, Plan> plans;

  bool run(const Key& key, const AttentionTensors& tensors);
  const Plan& plan(const Key& key, const AttentionTensors& tensors);
  Plan make_plan(const Key& key, const AttentionTensors& tensors) const;
  fe::error_t list_plans(Graph& graph) const;
  bool build(Plan& plan, std::int64_t index) const;
  bool build_first(Plan& plan) const;
  bool build_kept(Plan& plan, const std::string& work) const;
  void pick_fastest(const Key& key, Plan& plan, const AttentionTensors& tensors, const std::string& work) const;
  void execute(const Key& key, const Plan& plan, const AttentionTensors& tensors) const;
  bool can_time() const { return choices != nullptr && choices->open() && !is_capturing(stream); }
};

fe::error_t AttentionPlans::Impl::list_plans(Graph& graph) const {
  fe::error_t status = graph.validate();
  if (status.is_good()) status = graph.build_operation_graph(handle.get());
  return status.is_good() ? graph.create_execution_plans({fe::HeurMode_t::A}) : status;
}

bool AttentionPlans::Impl::build(Plan& plan, std::int64_t index) const {
  std::int64_t workspace = 0;
  if (plan.graph->build_plan_at_index(index).is_bad()) return false;
  DDP_CUDNN(plan.graph->get_workspace_size_plan_at_index(index, workspace));
  plan.index = index;
  plan.workspace = static_cast<std::size_t>(workspace);
  return true;
}

bool AttentionPlans::Impl::build_first(Plan& plan) const {
  for (std::int64_t i = 0; i < plan.graph->get_execution_plan_count(); ++i) {
    if (build(plan, i)) return true;
  }
  return false;
}

bool AttentionPlans::Impl::build_kept(Plan& plan, const std::string& work) const {
  const std::string* choice = choices == nullptr ? nullptr : choices->find(work);
  if (choice == nullptr) return false;
  for (std::int64_t i = 0; i < plan.graph->get_execution_plan_count(); ++i) {
    if (*choice == std::to_string(i)) return build(plan, i);
  }
  return false;
}

void AttentionPlans::Impl::pick_fastest(const Key& key, Plan& plan, const AttentionTensors& tensors,
                                        const std::string& work) const {
  float best_time = milliseconds_of([&] { execute(key, plan, tensors); }, stream);
  std::int64_t best = plan.index;
  for (std::int64_t i = best + 1; i < plan.graph->get_execution_plan_count(); ++i) {
    if (!build(plan, i)) continue;
    const float time = milliseconds_of([&] { execute(key, plan, tensors); }, stream);
    spdlog::debug("{}: plan {} takes {:.3f} ms, the fastest so far {:.3f}", work, i, time, best_time);
    if (time >= best_time) continue;
    best = i;
    best_time = time;
  }
  choices->choose(work, std::to_string(best));
  DDP_CHECK(build_kept(plan, work), "{}: cuDNN does not have the plan that was chosen", work);
}

Plan AttentionPlans::Impl::make_plan(const Key& key, const AttentionTensors& tensors) const {
  DDP_CHECK(!is_capturing(stream), "attention of this shape must run once before it is captured in a graph");
  const AttentionShape& s = key.shape;
  const std::string work =
      fmt::format("{}: {} x {} x {} x {}", name_of(key.pass), s.batch, s.heads, s.sequence, s.head_size);
  Plan plan{.graph = describe(key)};
  fe::error_t status = list_plans(*plan.graph);
  if (status.is_good() && build_kept(plan, work)) return plan;
  if (status.is_bad() || !build_first(plan)) {
    spdlog::debug("{}: cuDNN has none: {}", work, status.get_message());
    return {};
  }
  plan.provisional = choices != nullptr && !can_time();
  if (can_time()) pick_fastest(key, plan, tensors, work);
  return plan;
}

const Plan& AttentionPlans::Impl::plan(const Key& key, const AttentionTensors& tensors) {
  auto found = plans.find(key);
  if (found != plans.end() && found->second.provisional && can_time()) {
    plans.erase(found);
    found = plans.end();
  }
  if (found == plans.end()) found = plans.emplace(key, make_plan(key, tensors)).first;
  return found->second;
}

void AttentionPlans::Impl::execute(const Key& key, const Plan& plan, const AttentionTensors& t) const {
  const std::int64_t bytes = key.shape.width() * 2;
  const auto part = [&](void* base, int index) -> void* { return static_cast<char*>(base) + index * bytes; };
  std::unordered_map<std::int64_t, void*> pointers = {
      {kQ, t.qkv}, {kK, part(t.qkv, 1)}, {kV, part(t.qkv, 2)}, {kOut, t.out}, {kStatistics, t.statistics}};
  if (key.pass != Pass::forward) {
    pointers.insert({{kDout, t.dout}, {kDq, t.dqkv}, {kDk, part(t.dqkv, 1)}, {kDv, part(t.dqkv, 2)}});
  }
  void* workspace = scratch.reserve(plan.workspace, stream);
  DDP_CUDNN(plan.graph->execute_plan_at_index(handle.get(), pointers, workspace, plan.index));
}

AttentionPlans::AttentionPlans(cudaStream_t stream, Scratch& scratch, TunedChoices* choices)
    : impl_(new Impl{stream, scratch, choices, CudnnHandle(), {}}) {
  DDP_CHECK(!is_capturing(stream), "attention must run once before it is captured in a graph");
  DDP_CUDNN(cudnnCreate(impl_->handle.out()));
  DDP_CUDNN(cudnnSetStream(impl_->handle.get(), stream));
}

AttentionPlans::~AttentionPlans() = default;

bool AttentionPlans::Impl::run(const Key& key, const AttentionTensors& tensors) {
  const Plan& chosen = plan(key, tensors);
  if (!chosen.graph) return false;
  execute(key, chosen, tensors);
  return true;
}

bool AttentionPlans::forward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return impl_->run({Pass::forward, shape}, tensors);
}

bool AttentionPlans::backward(const AttentionShape& shape, const AttentionTensors& tensors, bool deterministic) {
  return impl_->run({deterministic ? Pass::backward : Pass::backward_unordered, shape}, tensors);
}

}  // namespace ddptrain::cuda
