#include "runtime/ops/convolution.h"

#include <compare>
#include <map>
#include <string>
#include <unordered_map>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/cuda/cuda_ops.h"
#include "runtime/ops/cuda/cudnn_graph.h"
#include "runtime/ops/cuda/image/conv2d_layout.h"

namespace ddptrain {

namespace {

namespace fe = cuda::fe;
using cuda::TensorRef;
using fe::graph::Graph;

enum class ConvKind : std::uint8_t { forward, forward_bias_relu, data_gradient, weight_gradient };
enum Uid : std::int64_t { kX = 1, kW, kBias, kY };

/// The tensors of a convolution; for the gradients x, w and y stand for dx, dw and dy when these are computed or
/// given.
struct ConvTensors {
  void* x = nullptr;     ///< [batch, height, width, in]
  void* w = nullptr;     ///< [out, kernel, kernel, in]
  void* bias = nullptr;  ///< [out], forward_bias_relu only
  void* y = nullptr;     ///< [batch, out_height, out_width, out]
};

struct Key {
  ConvKind kind;
  ConvShape shape;

  auto operator<=>(const Key&) const = default;
};

/// How a convolution is run; without a graph cuDNN cannot do it.
struct Plan {
  std::shared_ptr<Graph> graph;
  ConvShape shape;              ///< As cuDNN sees it: the caller's, or with padded channels.
  bool channels_first = false;  ///< NCHW in place of NHWC.
  std::size_t workspace = 0;
};

/// One tensor of a convolution: where the caller has it and where cuDNN sees it.
struct Operand {
  Uid uid;
  void* plain;
  bool is_output;
  bool is_packed;
  void* packed;
};

/// Describes [outer, rows, columns, channels] in cuDNN's order of dimensions.
fe::graph::Tensor_attributes describe(Uid uid, bool channels_first, std::int64_t outer, std::int64_t rows,
                                      std::int64_t columns, std::int64_t channels) {
  fe::graph::Tensor_attributes tensor;
  tensor.set_uid(uid).set_dim({outer, channels, rows, columns});
  if (channels_first) {
    tensor.set_stride({rows * columns * channels, rows * columns, columns, 1});
  } else {
    tensor.set_stride({rows * columns * channels, 1, columns * channels, channels});
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

std::int64_t round_up(std::int64_t value, std::int64_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

cuda::PackedLayout layout_of(const ConvShape& plain, const Plan& plan, Uid tensor) {
  const bool first = plan.channels_first;
  switch (tensor) {
    case kX:
      return {plain.batch, plain.height * plain.width, plain.in, plan.shape.in, first};
    case kW:
      return {plain.out, plain.kernel * plain.kernel, plain.in, plan.shape.in, first};
    default:
      return {plain.batch, plain.out_height() * plain.out_width(), plain.out, plan.shape.out, first};
  }
}

Uid output_of(ConvKind kind) {
  if (kind == ConvKind::data_gradient) return kX;
  return kind == ConvKind::weight_gradient ? kW : kY;
}

/// Convolutions by cuDNN, planned when a shape is first seen; sums are kept in f32, and f32 stays clear of tensor cores
/// unless the precision is tf32. Tensors are NHWC. If cuDNN has no plan for them, it computes with copies whose
/// channels are padded to a multiple of eight. If it has none for these either, the copies are NCHW. With
/// MemoryFormat::nchw the copies are always NCHW.
class CudaConvolution final : public ConvolutionOps, CudaOps {
 public:
  using CudaOps::CudaOps;

  void use(MemoryFormat format) override {
    if (format != format_) plans_.clear();
    format_ = format;
  }

  void conv2d(const Tensor& x, const Tensor& weight, const Tensor& bias, const Tensor& y) override {
    const ConvShape shape = check_conv2d("conv2d", x, weight, bias, y, dtype());
    const ConvTensors tensors{x.data, weight.data, bias.data, y.data};
    const bool fused = bias && plan({ConvKind::forward_bias_relu, shape}).graph != nullptr;
    run(fused ? ConvKind::forward_bias_relu : ConvKind::forward, shape, tensors, false);
    if (!bias || fused) return;
    const Tensor rows{y.data, y.dtype, {y.size() / shape.out, shape.out}};
    device_.get<ActivationOps>().bias_relu_dropout(rows, bias, Dropout{});
  }

  void conv2d_backward(const Tensor& x, const Tensor& weight, const Tensor& dy, const Tensor& dx, const Tensor& dweight,
                       bool accumulate) override {
    const ConvShape shape = check_conv2d_backward(x, weight, dy, dx, dweight, dtype());
    run(ConvKind::weight_gradient, shape, {x.data, dweight.data, nullptr, dy.data}, accumulate);
    if (dx) run(ConvKind::data_gradient, shape, {dx.data, weight.data, nullptr, dy.data}, false);
  }

 private:
  std::shared_ptr<Graph> describe_graph(ConvKind kind, const ConvShape& s, bool channels_first) const {
    auto graph = std::make_shared<Graph>();
    graph->set_io_data_type(device_.precision() == Precision::bf16 ? fe::DataType_t::BFLOAT16 : fe::DataType_t::FLOAT)
        .set_intermediate_data_type(fe::DataType_t::FLOAT)
        .set_compute_data_type(fe::DataType_t::FLOAT);
    const auto x = describe(kX, channels_first, s.batch, s.height, s.width, s.in);
    const auto w = describe(kW, channels_first, s.out, s.kernel, s.kernel, s.in);
    const auto y = describe(kY, channels_first, s.batch, s.out_height(), s.out_width(), s.out);
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
        const auto bias = describe(kBias, channels_first, 1, 1, 1, s.out);
        const auto pointwise = [](fe::PointwiseMode_t mode) {
          return fe::graph::Pointwise_attributes().set_mode(mode);
        };
        result = graph->pointwise(result, graph->tensor(bias), pointwise(fe::PointwiseMode_t::ADD));
        result->set_dim(y.get_dim()).set_stride(y.get_stride());
        result = graph->pointwise(result, pointwise(fe::PointwiseMode_t::RELU_FWD));
      }
      set_output(result, y);
    }
    return graph;
  }

  /// Made by the first convolution: cuDNN takes time to start, and fused kernels do without it.
  cudnnHandle_t handle() {
    if (!handle_) {
      DDP_CUDNN(cudnnCreate(handle_.out()));
      DDP_CUDNN(cudnnSetStream(handle_.get(), stream()));
    }
    return handle_.get();
  }

  fe::error_t build(Graph& graph) {
    std::vector<fe::NumericalNote_t> unwanted = {
        fe::NumericalNote_t::NONDETERMINISTIC, fe::NumericalNote_t::REDUCED_PRECISION_REDUCTION,
        fe::NumericalNote_t::FFT, fe::NumericalNote_t::WINOGRAD_TILE_6x6, fe::NumericalNote_t::WINOGRAD_TILE_13x13};
    if (device_.precision() == Precision::fp32) {
      unwanted.insert(unwanted.end(), {fe::NumericalNote_t::TENSOR_CORE, fe::NumericalNote_t::DOWN_CONVERT_INPUTS});
    }
    fe::error_t status = graph.validate();
    if (status.is_good()) status = graph.build_operation_graph(handle());
    if (status.is_good()) {
      status = graph.create_execution_plans({fe::HeurMode_t::A, fe::HeurMode_t::B, fe::HeurMode_t::FALLBACK});
    }
    if (status.is_bad()) return status;
    graph.deselect_numeric_notes(unwanted);
    status = graph.check_support();
    return status.is_good() ? graph.build_plans() : status;
  }

  /// Writes to `reason` why there is no plan.
  Plan try_plan(ConvKind kind, const ConvShape& shape, bool channels_first, std::string& reason) {
    const std::shared_ptr<Graph> graph = describe_graph(kind, shape, channels_first);
    fe::error_t status = build(*graph);
    if (status.is_bad()) {
      reason = status.get_message();
      return {};
    }
    std::int64_t workspace = 0;
    DDP_CUDNN(graph->get_workspace_size(workspace));
    return {graph, shape, channels_first, static_cast<std::size_t>(workspace)};
  }

  Plan make_plan(const Key& key) {
    DDP_CHECK(!cuda::is_capturing(stream()),
              "a convolution of this shape must run once before it is captured in a graph");
    std::string reason;
    const ConvShape& s = key.shape;
    ConvShape padded = s;
    padded.in = round_up(padded.in, 8);
    padded.out = round_up(padded.out, 8);
    for (const bool channels_first : {false, true}) {
      if (format_ == (channels_first ? MemoryFormat::nhwc : MemoryFormat::nchw)) continue;
      for (const ConvShape& shape : {s, padded}) {
        const Plan plan = try_plan(key.kind, shape, channels_first, reason);
        if (plan.graph || key.kind == ConvKind::forward_bias_relu) return plan;
      }
    }
    const char* format = format_ == MemoryFormat::automatic ? "" : format_ == MemoryFormat::nhwc ? "NHWC " : "NCHW ";
    fail("cuDNN {} has no {} {}algorithm for a convolution of {} x {} x {} x {} with {} x {} x {} filters: {}",
         cudnn_version(), name_of(device_.precision()), format, s.batch, s.height, s.width, s.in, s.out, s.kernel,
         s.kernel, reason);
  }

  const Plan& plan(const Key& key) {
    auto found = plans_.find(key);
    if (found == plans_.end()) found = plans_.emplace(key, make_plan(key)).first;
    return found->second;
  }

  /// `accumulate`: the result is added (weight_gradient only).
  void run(ConvKind kind, const ConvShape& shape, const ConvTensors& tensors, bool accumulate) {
    const Plan& plan = this->plan({kind, shape});
    const bool is_padded = plan.shape != shape;
    const bool repacks = is_padded || plan.channels_first;
    std::vector<Operand> operands;
    for (const auto& [uid, data] : {std::pair{kX, tensors.x}, std::pair{kW, tensors.w}, std::pair{kY, tensors.y}}) {
      const bool is_output = uid == output_of(kind);
      operands.push_back({uid, data, is_output, repacks || (is_output && accumulate), data});
    }
    void* workspace = nullptr;
    const auto bytes_of = [&](const Operand& operand) {
      const cuda::PackedLayout packed = layout_of(plan.shape, plan, operand.uid);
      return static_cast<std::size_t>(packed.outer * packed.pixels * packed.channels) * size_of(dtype());
    };
    const auto lay_out = [&](void* memory) {
      cuda::Pieces pieces(memory);
      workspace = pieces.take<char>(plan.workspace);
      for (Operand& operand : operands) {
        if (operand.is_packed) operand.packed = pieces.take<char>(bytes_of(operand));
      }
      return pieces.bytes();
    };
    lay_out(scratch().reserve(lay_out(nullptr), stream()));
    std::unordered_map<std::int64_t, void*> pointers;
    for (const Operand& operand : operands) {
      pointers[operand.uid] = operand.packed;
      if (!operand.is_packed || operand.is_output) continue;
      if (is_padded) device_.zero(operand.packed, bytes_of(operand), device_.compute_stream());
      cuda::pack(layout_of(shape, plan, operand.uid), dtype(), operand.plain, operand.packed, stream());
    }
    if (kind == ConvKind::forward_bias_relu) pointers[kBias] = tensors.bias;
    DDP_CUDNN(plan.graph->execute(handle(), pointers, workspace));
    for (const Operand& operand : operands) {
      if (!operand.is_packed || !operand.is_output) continue;
      cuda::unpack(layout_of(shape, plan, operand.uid), dtype(), operand.packed, operand.plain, accumulate, stream());
    }
  }

  MemoryFormat format_ = MemoryFormat::automatic;
  cuda::CudnnHandle handle_;
  std::map<Key, Plan> plans_;
};

}  // namespace

std::unique_ptr<ConvolutionOps> ConvolutionOps::on_cuda(Device& device) {
  return std::make_unique<CudaConvolution>(device);
}

}  // namespace ddptrain
