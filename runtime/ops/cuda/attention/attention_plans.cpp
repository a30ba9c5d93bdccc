#include "runtime/ops/cuda/attention/attention_plans.h"

#include <spdlog/spdlog.h>

#include <algorithm>
#include <cmath>
#include <compare>
#include <limits>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cudnn_graph.h"
#include "runtime/ops/cuda/gemm/tuner.h"

namespace ddptrain::cuda {

namespace {

using fe::graph::Graph;

enum class Pass : std::uint8_t { forward, backward };
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
  bool provisional = false;  ///< The first plan or none, where timing was not possible yet.
};

/// Key of TunedChoices.
std::string name_of(const Key& key) {
  const AttentionShape& s = key.shape;
  const std::string heads =
      s.key_heads == s.heads ? fmt::format("{}", s.heads) : fmt::format("{} with {} keys", s.heads, s.key_heads);
  return fmt::format("{}: {} x {} x {} x {}", key.pass == Pass::forward ? "attention" : "attention backward", s.batch,
                     heads, s.sequence, s.head_size);
}
constexpr const char* kNoPlan = "none";

/// Its engine and settings, which do not depend on the order in which cuDNN lists its plans.
std::string name_of(const Graph& graph, std::int64_t index) {
  std::string name;
  DDP_CUDNN(graph.get_plan_name_at_index(index, name));
  return name;
}

/// q, k, v and their gradients lie side by side in rows, out and d_output in rows of their own.
struct Layout {
  std::vector<std::int64_t> dimensions, strides;

  Layout(Uid uid, const AttentionShape& s) {
    const bool is_key = uid == kK || uid == kV || uid == kDk || uid == kDv;
    const bool is_output = uid == kOut || uid == kDout;
    const std::int64_t row = is_output ? s.width() : s.columns();
    dimensions = {s.batch, is_key ? s.key_heads : s.heads, s.sequence, s.head_size};
    strides = {s.sequence * row, s.head_size, row, 1};
  }
};

TensorRef add(Graph& graph, Uid uid, const AttentionShape& s) {
  const Layout layout(uid, s);
  return graph.tensor(
      fe::graph::Tensor_attributes().set_uid(uid).set_dim(layout.dimensions).set_stride(layout.strides));
}

void set_output(const TensorRef& tensor, Uid uid, const AttentionShape& s) {
  const Layout layout(uid, s);
  tensor->set_output(true).set_uid(uid).set_dim(layout.dimensions).set_stride(layout.strides);
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
  const TensorRef q = add(*graph, kQ, s);
  const TensorRef k = add(*graph, kK, s);
  const TensorRef v = add(*graph, kV, s);
  const std::vector<std::int64_t> statistics_dims = {s.batch, s.heads, s.sequence, 1};
  const std::vector<std::int64_t> statistics_strides = {s.heads * s.sequence, s.sequence, 1, 1};
  if (key.pass == Pass::forward) {
    auto attributes = causal<fe::graph::SDPA_attributes>(s);
    attributes.set_generate_stats(true);
    const auto [out, statistics] = graph->sdpa(q, k, v, attributes);
    set_output(out, kOut, s);
    statistics->set_output(true).set_uid(kStatistics).set_data_type(fe::DataType_t::FLOAT);
    statistics->set_dim(statistics_dims).set_stride(statistics_strides);
    return graph;
  }
  auto attributes = causal<fe::graph::SDPA_backward_attributes>(s);
  attributes.set_deterministic_algorithm(true);
  const TensorRef statistics = graph->tensor(fe::graph::Tensor_attributes()
                                                 .set_uid(kStatistics)
                                                 .set_data_type(fe::DataType_t::FLOAT)
                                                 .set_dim(statistics_dims)
                                                 .set_stride(statistics_strides));
  const auto [dq, dk, dv] =
      graph->sdpa_backward(q, k, v, add(*graph, kOut, s), add(*graph, kDout, s), statistics, attributes);
  set_output(dq, kDq, s);
  set_output(dk, kDk, s);
  set_output(dv, kDv, s);
  return graph;
}

}  // namespace

struct AttentionPlans::Impl {
  cudaStream_t stream;
  Scratch& scratch;
  TunedChoices* choices;
  CudnnHandle handle;
  std::map<Key, Plan> plans;

  bool run(const Key& key, const AttentionTensors& tensors) {
    const Plan& chosen = plan(key, tensors);
    if (!chosen.graph) return false;
    execute(key, chosen, tensors, scratch.reserve(chosen.workspace, stream));
    return true;
  }

  const Plan& plan(const Key& key, const AttentionTensors& tensors) {
    auto found = plans.find(key);
    if (found != plans.end() && found->second.provisional && can_time()) {
      plans.erase(found);
      found = plans.end();
    }
    if (found == plans.end()) found = plans.emplace(key, make_plan(key, tensors)).first;
    return found->second;
  }

  Plan make_plan(const Key& key, const AttentionTensors& tensors) const {
    DDP_CHECK(!is_capturing(stream), "attention of this shape must run once before it is captured in a graph");
    const std::string work = name_of(key);
    Plan plan{.graph = describe(key)};
    fe::error_t status = list_plans(*plan.graph);
    const std::string* kept = choices == nullptr ? nullptr : choices->find(work);
    if (kept != nullptr && *kept == kNoPlan) return {};
    if (kept != nullptr && status.is_good() && build_named(plan, *kept)) return plan;
    const bool found = status.is_good() && build_first(plan);
    if (!found) spdlog::debug("{}: cuDNN has none: {}", work, status.get_message());
    if (kept != nullptr) {
      spdlog::warn("{}: cuDNN does not have the plan that was kept, {}", work, *kept);
      choices->refuse(work);
    } else if (can_time()) {
      const std::string choice = choices->choose(work, found ? fastest(key, plan, tensors) : kNoPlan);
      if (choice == kNoPlan) return {};
      plan = {.graph = describe(key)};  // without the plans that were timed
      DDP_CHECK(list_plans(*plan.graph).is_good() && build_named(plan, choice),
                "{}: cuDNN does not have the plan of rank 0, {}", work, choice);
      return plan;
    } else {
      plan.provisional = choices != nullptr;
    }
    if (!found) plan.graph.reset();
    return plan;
  }

  fe::error_t list_plans(Graph& graph) const {
    fe::error_t status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph(handle.get());
    return status.is_good() ? graph.create_execution_plans({fe::HeurMode_t::A}) : status;
  }

  bool build(Plan& plan, std::int64_t index) const {
    std::int64_t workspace = 0;
    if (plan.graph->build_plan_at_index(index).is_bad()) return false;
    DDP_CUDNN(plan.graph->get_workspace_size_plan_at_index(index, workspace));
    plan.index = index;
    plan.workspace = static_cast<std::size_t>(workspace);
    return true;
  }

  bool build_first(Plan& plan) const {
    for (std::int64_t i = 0; i < plan.graph->get_execution_plan_count(); ++i) {
      if (build(plan, i)) return true;
    }
    return false;
  }

  bool build_named(Plan& plan, const std::string& name) const {
    for (std::int64_t i = 0; i < plan.graph->get_execution_plan_count(); ++i) {
      if (name_of(*plan.graph, i) == name) return build(plan, i);
    }
    return false;
  }

  /// Infinite if there is no memory for the plan's workspace, which is given back.
  float time(const Key& key, const Plan& plan, const AttentionTensors& tensors) const {
    DeviceMemory workspace;
    if (plan.workspace > 0 && cudaMalloc(workspace.out(), plan.workspace) != cudaSuccess) {
      cudaGetLastError();
      return std::numeric_limits<float>::infinity();
    }
    return milliseconds_of([&] { execute(key, plan, tensors, workspace.get()); }, stream);
  }

  /// The name of the fastest plan from `plan`, the first one, on. Of the others, those alone that give the same bits
  /// again.
  std::string fastest(const Key& key, Plan plan, const AttentionTensors& tensors) const {
    std::string best = name_of(*plan.graph, plan.index);
    float best_time = time(key, plan, tensors);
    plan.graph->deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
    for (std::int64_t i = plan.index + 1; i < plan.graph->get_execution_plan_count(); ++i) {
      if (!build(plan, i)) continue;
      const float its_time = time(key, plan, tensors);
      spdlog::debug("{}: {} takes {:.3f} ms, the fastest so far {:.3f}", name_of(key), name_of(*plan.graph, i),
                    its_time, best_time);
      if (its_time >= best_time) continue;
      best = name_of(*plan.graph, i);
      best_time = its_time;
    }
    return best;
  }

  void execute(const Key& key, const Plan& plan, const AttentionTensors& t, void* workspace) const {
    const std::int64_t k = key.shape.width(), v = k + key.shape.key_width();
    const auto from = [](void* base, std::int64_t column) -> void* { return static_cast<char*>(base) + 2 * column; };
    std::unordered_map<std::int64_t, void*> pointers = {
        {kQ, t.qkv}, {kK, from(t.qkv, k)}, {kV, from(t.qkv, v)}, {kOut, t.out}, {kStatistics, t.statistics}};
    if (key.pass != Pass::forward) {
      pointers.insert({{kDout, t.d_output}, {kDq, t.dqkv}, {kDk, from(t.dqkv, k)}, {kDv, from(t.dqkv, v)}});
    }
    DDP_CUDNN(plan.graph->execute_plan_at_index(handle.get(), pointers, workspace, plan.index));
  }

  bool can_time() const { return choices != nullptr && choices->open() && !is_capturing(stream); }
};

AttentionPlans::AttentionPlans(cudaStream_t stream, Scratch& scratch, TunedChoices* choices)
    : impl_(new Impl{stream, scratch, choices, CudnnHandle(), {}}) {
  DDP_CHECK(!is_capturing(stream), "attention must run once before it is captured in a graph");
  DDP_CUDNN(cudnnCreate(impl_->handle.out()));
  DDP_CUDNN(cudnnSetStream(impl_->handle.get(), stream));
}

AttentionPlans::~AttentionPlans() = default;

bool AttentionPlans::forward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return impl_->run({Pass::forward, shape}, tensors);
}

bool AttentionPlans::backward(const AttentionShape& shape, const AttentionTensors& tensors) {
  return impl_->run({Pass::backward, shape}, tensors);
}

}  // namespace ddptrain::cuda
