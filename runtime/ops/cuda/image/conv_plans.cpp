#include "runtime/ops/cuda/image/conv_plans.h"

#include <compare>
#include <initializer_list>
#include <map>
#include <optional>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/cuda/cudnn_graph.h"
#include "runtime/ops/cuda/image/conv2d_layout.h"

namespace ddptrain::cuda {

namespace {

using fe::graph::Graph;

enum Uid : std::int64_t { kX = 1, kW, kBias, kY };

struct Key {
  ConvKind kind;
  ConvShape shape;

  auto operator<=>(const Key&) const = default;
};

/// How a convolution is run; without a graph cuDNN cannot do it.
struct Plan {
  std::shared_ptr<Graph> graph;
  ConvShape shape;  ///< As cuDNN sees it: the caller's, or with padded channels.
  MemoryFormat format = MemoryFormat::nhwc;
  std::size_t workspace = 0;
};

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t aligned(std::size_t bytes) { return (bytes + 255) / 256 * 256; }

/// Describes [outer, rows, columns, channels] in cuDNN's order of dimensions.
fe::graph::Tensor_attributes describe(Uid uid, MemoryFormat format, std::int64_t outer, std::int64_t rows,
                                      std::int64_t columns, std::int64_t channels) {
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(uid).set_dim({outer, channels, rows, columns});
  if (format == MemoryFormat::nhwc) {
    tensor.set_stride({rows * columns * channels, 1, columns * channels, channels});
  } else {
    tensor.set_stride({rows * columns * channels, rows * columns, columns, 1});
  }
  return tensor;
}

template <class Attributes>
Attributes convolution() {
  Attributes attributes;
  attributes.set_padding({0, 0}).set_stride({1, 1}).set_dilation({1, 1});
  return attributes;
}

void set_output(const TensorRef& tensor, const fe::graph::Tensor_attributes& like) {
  tensor->set_output(true).set_uid(like.get_uid()).set_dim(like.get_dim()).set_stride(like.get_stride());
}

}  // namespace

struct ConvPlans::Impl {
  Precision precision;
  MemoryFormat format;
  cudaStream_t stream;
  CudnnHandle handle;
  Scratch scratch;
  std::map<Key, Plan> plans;

  const Plan& plan(const Key& key);
  Plan make_plan(const Key& key);
  std::optional<Plan> try_plan(ConvKind kind, const ConvShape& shape, MemoryFormat layout, std::string* reason) const;
  std::shared_ptr<Graph> describe_graph(ConvKind kind, const ConvShape& shape, MemoryFormat layout) const;
  fe::error_t build(Graph& graph) const;
};

std::shared_ptr<Graph> ConvPlans::Impl::describe_graph(ConvKind kind, const ConvShape& s, MemoryFormat layout) const {
  auto graph = std::make_shared<Graph>();
  graph->set_io_data_type(precision == Precision::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT)
      .set_intermediate_data_type(fe::DataType_t::FLOAT)
      .set_compute_data_type(fe::DataType_t::FLOAT);
  const auto x = describe(kX, layout, s.batch, s.height, s.width, s.in);
  const auto w = describe(kW, layout, s.out, s.kernel, s.kernel, s.in);
  const auto y = describe(kY, layout, s.batch, s.out_height(), s.out_width(), s.out);
  if (kind == ConvKind::data_gradient) {
    const auto attributes = convolution<fe::graph::Conv_dgrad_attributes>();
    set_output(graph->conv_dgrad(graph->tensor(y), graph->tensor(w), attributes), x);
  } else if (kind == ConvKind::weight_gradient) {
    const auto attributes = convolution<fe::graph::Conv_wgrad_attributes>();
    set_output(graph->conv_wgrad(graph->tensor(y), graph->tensor(x), attributes), w);
  } else {
    const auto attributes = convolution<fe::graph::Conv_fprop_attributes>();
    TensorRef result = graph->conv_fprop(graph->tensor(x), graph->tensor(w), attributes);
    if (kind == ConvKind::forward_bias_relu) {
      result->set_dim(y.get_dim()).set_stride(y.get_stride());
      const auto bias = describe(kBias, layout, 1, 1, 1, s.out);
      const auto pointwise = [](fe::PointwiseMode_t mode) { return fe::graph::Pointwise_attributes().set_mode(mode); };
      result = graph->pointwise(result, graph->tensor(bias), pointwise(fe::PointwiseMode_t::ADD));
      result->set_dim(y.get_dim()).set_stride(y.get_stride());
      result = graph->pointwise(result, pointwise(fe::PointwiseMode_t::RELU_FWD));
    }
    set_output(result, y);
  }
  return graph;
}

fe::error_t ConvPlans::Impl::build(Graph& graph) const {
  std::vector<fe::NumericalNote_t> unwanted = {
      fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION, fe::NumericalNote_t::FFT,
      fe::NumericalNote_t::WINOGRAD_TILE_6x6, fe::NumericalNote_t::WINOGRAD_TILE_13x13};
  if (precision == Precision::fp32) {
    unwanted.insert(unwanted.end(), {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS});
  }
  fe::error_t status = graph.validate();
  if (status.is_good()) status = graph.build_operation_graph(handle.get());
  if (status.is_good()) {
    status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::B, fe::HeurMode_t::FALLBACK});
  }
  if (status.is_bad()) return status;
  graph.deselect_numeric_notes(unwanted);
  status = graph.check_support();
  return status.is_good() ? graph.build_plans() : status;
}

std::optional<Plan> ConvPlans::Impl::try_plan(ConvKind kind, const ConvShape& shape, MemoryFormat layout,
                                              std::string* reason) const {
  const std::shared_ptr<Graph> graph = describe_graph(kind, shape, layout);
  fe::error_t status = build(*graph);
  if (status.is_bad()) {
    *reason = status.get_message();
    return std::nullopt;
  }
  std::int64_t workspace = 0;
  DDP_CUDNN(graph->get_workspace_size(workspace));
  return Plan{graph, shape, layout, static_cast<std::size_t>(workspace)};
}

Plan ConvPlans::Impl::make_plan(const Key& key) {
  DDP_CHECK(!is_capturing(stream), "a convolution of this shape must run once before it is captured in a graph");
  std::string reason;
  const ConvShape& s = key.shape;
  if (auto plan = try_plan(key.kind, s, format, &reason)) return *plan;
  if (key.kind == ConvKind::forward_bias_relu) return {};
  ConvShape padded = s;
  padded.in = round_up(padded.in, 8);
  padded.out = round_up(padded.out, 8);
  for (const MemoryFormat layout : {format, MemoryFormat::nchw}) {
    for (const ConvShape& shape : {s, padded}) {
      if (auto plan = try_plan(key.kind, shape, layout, &reason)) return *plan;
    }
  }
  fail("cuDNN {} has no {} algorithm for a convolution of {} x {} x {} x {} with {} x {} x {} filters: {}",
       cudnn_version(), name_of(precision), s.batch, s.height, s.width, s.in, s.out, s.kernel, s.kernel, reason);
}

const Plan& ConvPlans::Impl::plan(const Key& key) {
  auto found = plans.find(key);
  if (found == plans.end()) found = plans.emplace(key, make_plan(key)).first;
  return found->second;
}

ConvPlans::ConvPlans(Precision precision, MemoryFormat format, cudaStream_t stream) : impl_(std::make_unique<Impl>()) {
  DDP_CHECK(!is_capturing(stream), "a convolution must run once before one is captured in a graph");
  impl_->precision = precision;
  impl_->format = format;
  impl_->stream = stream;
  DDP_CUDNN(cudnnCreate(impl_->handle.out()));
  DDP_CUDNN(cudnnSetStream(impl_->handle.get(), stream));
}

ConvPlans::~ConvPlans() = default;

bool ConvPlans::fuses_bias_relu(const ConvShape& shape) {
  return impl_->plan({ConvKind::forward_bias_relu, shape}).graph != nullptr;
}

namespace {

/// One tensor of a convolution: where the caller has it and where cuDNN sees it.
struct Operand {
  Uid uid;
  void* plain;
  bool is_output;
  std::size_t packed_bytes;  ///< 0 where cuDNN uses the caller's.
  void* packed = nullptr;
};

PackedLayout layout_of(const ConvShape& plain, const Plan& plan, Uid tensor) {
  const bool first = plan.format == MemoryFormat::nchw;
  switch (tensor) {
    case kX:
      return {plain.batch, plain.height * plain.width, plain.in, plan.shape.in, first};
    case kW:
      return {plain.out, plain.kernel * plain.kernel, plain.in, plan.shape.in, first};
    default:
      return {plain.batch, plain.out_height() * plain.out_width(), plain.out, plan.shape.out, first};
  }
}

std::size_t elements(const ConvShape& s, Uid uid) {
  const std::int64_t count = uid == kX   ? s.batch * s.height * s.width * s.in
                             : uid == kW ? s.out * s.kernel * s.kernel * s.in
                                         : s.batch * s.out_height() * s.out_width() * s.out;
  return static_cast<std::size_t>(count);
}

Uid output_of(ConvKind kind) {
  if (kind == ConvKind::data_gradient) return kX;
  return kind == ConvKind::weight_gradient ? kW : kY;
}

}  // namespace

void ConvPlans::run(ConvKind kind, const ConvShape& shape, const ConvTensors& tensors, bool accumulate) {
  Impl& me = *impl_;
  const Plan& plan = me.plan({kind, shape});
  const DType dtype = compute_dtype(me.precision);
  const bool padded = plan.shape != shape;
  const bool repacked = padded || plan.format == MemoryFormat::nchw;
  std::vector<Operand> operands;
  std::size_t bytes = aligned(plan.workspace);
  for (const auto& [uid, data] : {std::pair{kX, tensors.x}, std::pair{kW, tensors.w}, std::pair{kY, tensors.y}}) {
    const bool is_output = uid == output_of(kind);
    const bool packed = repacked || (is_output && accumulate);
    operands.push_back({uid, data, is_output, packed ? aligned(elements(plan.shape, uid) * size_of(dtype)) : 0});
    bytes += operands.back().packed_bytes;
  }
  char* memory = static_cast<char*>(me.scratch.reserve(bytes, me.stream));
  void* workspace = memory;
  memory += aligned(plan.workspace);
  std::unordered_map<std::int64_t, void*> pointers;
  for (Operand& operand : operands) {
    operand.packed = operand.packed_bytes > 0 ? memory : operand.plain;
    memory += operand.packed_bytes;
    pointers[operand.uid] = operand.packed;
    if (operand.packed_bytes == 0 || operand.is_output) continue;
    if (padded) DDP_CUDA(cudaMemsetAsync(operand.packed, 0, operand.packed_bytes, me.stream));
    pack(layout_of(shape, plan, operand.uid), dtype, operand.plain, operand.packed, me.stream);
  }
  if (kind == ConvKind::forward_bias_relu) pointers[kBias] = tensors.bias;
  DDP_CUDNN(plan.graph->execute(me.handle.get(), pointers, workspace));
  for (const Operand& operand : operands) {
    if (operand.packed_bytes == 0 || !operand.is_output) continue;
    unpack(layout_of(shape, plan, operand.uid), dtype, operand.packed, operand.plain, accumulate, me.stream);
  }
}

}  // namespace ddptrain::cuda
