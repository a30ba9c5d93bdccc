// Times every operation of transformers on one GPU, in bf16, at the sizes of a model's step.
//   gpt_ops_bench [gpt2-124m|gpt2-774m|gpt-mini|gpt-char|qwen2.5-0.5b|qwen2.5-1.5b|llama3.2-1b]... [--tune]
//                 [--fp32-gradients] [--fp8] [--seconds S]
// --fp8 times only the operations on FP8 tensors. Per operation it prints the time, the bytes that must be moved at
// least and their rate, and the matrix products and their rate. --seconds repeats each operation for S seconds more,
// and prints the time that the GPU sustains, its clock and power, and the energy of one run; before each operation the
// GPU rests for half a second, so that the first columns do not depend on the clock that the one before left.

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "benchmarks/gpt_ops/sustained.h"
#include "runtime/core/error.h"
#include "runtime/core/random.h"
#include "runtime/device/cuda/cuda_device.h"
#include "runtime/ops/activation.h"
#include "runtime/ops/attention.h"
#include "runtime/ops/attention/attention_plan.h"
#include "runtime/ops/cuda/attention/attention_kernels.h"
#include "runtime/ops/cuda/attention/attention_plans.h"
#include "runtime/ops/cuda/gemm/linear_kernels.h"
#include "runtime/ops/cuda/gemm/matmul.h"
#include "runtime/ops/embedding.h"
#include "runtime/ops/gated.h"
#include "runtime/ops/grouped_attention.h"
#include "runtime/ops/linear.h"
#include "runtime/ops/loss.h"
#include "runtime/ops/norm.h"
#include "runtime/ops/quantisation.h"
#include "runtime/ops/rms_norm.h"

namespace ddptrain {
namespace {

struct Sizes {
  const char* name;
  std::int64_t batch, sequence, width, heads, hidden, vocabulary, padded;
  std::optional<std::int64_t> key_heads = {};  ///< Of Llama and its relatives.

  std::int64_t rows() const { return batch * sequence; }
  GroupedHeads grouped_heads() const { return {heads, *key_heads, width / heads}; }
};

constexpr Sizes kSizes[] = {{"gpt2-124m", 64, 1024, 768, 12, 3072, 50257, 50304},
                            {"gpt2-774m", 16, 1024, 1280, 20, 5120, 50257, 50304},
                            {"gpt-mini", 1024, 80, 256, 2, 256, 20000, 20096},
                            {"gpt-char", 64, 256, 384, 6, 1536, 256, 256},
                            {"qwen2.5-0.5b", 8, 2048, 896, 14, 4864, 151936, 151936, 2},
                            {"qwen2.5-1.5b", 8, 2048, 1536, 12, 8960, 151936, 151936, 2},
                            {"llama3.2-1b", 8, 2048, 2048, 32, 8192, 128256, 128256, 8}};

class GptOps {
 public:
  /// `sustained` may be null.
  GptOps(CudaDevice& device, const Sizes& sizes, DType gradients, Sustained* sustained)
      : device_(device), s_(sizes), gradients_(gradients), sustained_(sustained), stream_(stream_of(device)) {
    std::printf("\n%s: %lld x %lld tokens, width %lld, %lld heads, hidden %lld, vocabulary %lld\n", s_.name,
                static_cast<long long>(s_.batch), static_cast<long long>(s_.sequence), static_cast<long long>(s_.width),
                static_cast<long long>(s_.heads), static_cast<long long>(s_.hidden), static_cast<long long>(s_.padded));
    std::printf("%-44s %10s %10s %10s %10s %10s", "operation", "us", "MB", "GB/s", "GFLOP", "TFLOP/s");
    if (sustained_ != nullptr) sustained_->print_header();
    std::printf("\n");
    make_tokens();
  }

  void run_fp8() {
    if (s_.key_heads) return run_llama(true);
    copies_fp8();
    norms_fp8();
    linear_fp8("qkv", s_.width, 3 * s_.width);
    linear_fp8("projection", s_.width, s_.width);
    linear_fp8("up", s_.width, s_.hidden);
    linear_fp8("down", s_.hidden, s_.width);
    gelu_fp8();
    scales_.clear();
    buffers_.clear();
  }

  void run() {
    if (s_.key_heads) return run_llama(false);
    embedding();
    norms();
    activations();
    linear("qkv", s_.width, 3 * s_.width);
    linear("projection", s_.width, s_.width);
    linear("up", s_.width, s_.hidden);
    linear("down", s_.hidden, s_.width);
    fused_products();
    attention();
    loss();
    linear("head", s_.width, s_.padded);
    scales_.clear();
    buffers_.clear();
  }

 private:
  void run_llama(bool fp8) {
    rms_norms(fp8 ? DType::e4m3 : DType::bf16);
    swiglu(fp8 ? DType::e4m3 : DType::bf16, fp8 ? DType::e5m2 : DType::bf16);
    const auto layer = [&](const char* name, std::int64_t in, std::int64_t out) {
      fp8 ? linear_fp8(name, in, out) : linear(name, in, out);
    };
    layer("qkv", s_.width, s_.grouped_heads().columns());
    layer("projection", s_.width, s_.width);
    layer("gate and up", s_.width, 2 * s_.hidden);
    layer("down", s_.hidden, s_.width);
    if (!fp8) {
      heads();
      grouped_attention();
      loss();
    }
    scales_.clear();
    buffers_.clear();
  }

  static cudaStream_t stream_of(CudaDevice& device) {
    return static_cast<cudaStream_t>(device.compute_stream().handle);
  }

  /// Random values of about unit size; the same 16 MiB repeat.
  Tensor random(DType dtype, const Shape& shape) {
    const Tensor tensor = empty(dtype, shape);
    const std::size_t bytes = std::min(tensor.bytes(), std::size_t{16} << 20);
    std::vector<std::uint8_t> pattern(bytes);
    const std::size_t count = bytes / size_of(dtype);
    for (std::size_t i = 0; i < count; ++i) {
      const Philox bits = philox(static_cast<std::uint32_t>(i), 0, 0, 0, 7);
      const float value = uniform01(bits.word[0]) + uniform01(bits.word[1]) + uniform01(bits.word[2]) - 1.5f;
      std::uint32_t word;
      std::memcpy(&word, &value, sizeof(word));
      if (dtype == DType::bf16) {
        const auto half = static_cast<std::uint16_t>(word >> 16);
        std::memcpy(&pattern[2 * i], &half, 2);
      } else {
        std::memcpy(&pattern[4 * i], &word, 4);
      }
    }
    for (std::size_t at = 0; at < tensor.bytes(); at += bytes) {
      DDP_CUDA(cudaMemcpyAsync(tensor.as<char>() + at, at == 0 ? static_cast<void*>(pattern.data()) : tensor.data,
                               std::min(bytes, tensor.bytes() - at), cudaMemcpyDefault, stream_));
    }
    device_.synchronize();
    return tensor;
  }
  Tensor random(const Shape& shape) { return random(DType::bf16, shape); }
  Tensor empty(DType dtype, const Shape& shape) {
    buffers_.push_back(device_.allocate(dtype, shape));
    return buffers_.back().view(dtype, shape);
  }
  Tensor empty(const Shape& shape) { return empty(DType::bf16, shape); }

  Tensor empty_fp8(DType format, const Shape& shape) {
    Tensor tensor = empty(format, shape);
    const Tensor states = empty(DType::f32, {1, QuantisationOps::kStateSize});
    scales_.push_back(device_.get<QuantisationOps>().make_scales({format}, states));
    tensor.scale = scales_.back()->at(0);
    return tensor;
  }
  Tensor random_fp8(DType format, const Shape& shape) {
    const Tensor tensor = empty_fp8(format, shape);
    device_.get<QuantisationOps>().to_fp8(random(shape), tensor, Tensor{}, false);
    return tensor;
  }

  /// The best of three measurements of ten consecutive runs.
  void time(const std::string& name, double bytes, double flops, const std::function<void()>& work) {
    constexpr int kRuns = 10;
    cuda::EventHandle begin, end;
    DDP_CUDA(cudaEventCreate(begin.out()));
    DDP_CUDA(cudaEventCreate(end.out()));
    if (sustained_ != nullptr) std::this_thread::sleep_for(std::chrono::milliseconds(500));
    for (int i = 0; i < 3; ++i) work();
    float best = 1e30f;
    for (int repeat = 0; repeat < 3; ++repeat) {
      DDP_CUDA(cudaEventRecord(begin.get(), stream_));
      for (int i = 0; i < kRuns; ++i) work();
      DDP_CUDA(cudaEventRecord(end.get(), stream_));
      DDP_CUDA(cudaEventSynchronize(end.get()));
      float elapsed = 0.0f;
      DDP_CUDA(cudaEventElapsedTime(&elapsed, begin.get(), end.get()));
      best = std::min(best, elapsed / kRuns);
    }
    std::printf("%-44s %10.1f %10.1f %10.0f %10.1f %10.1f", name.c_str(), best * 1e3, bytes / 1e6, bytes / best / 1e6,
                flops / 1e9, flops / best / 1e9);
    if (sustained_ != nullptr) sustained_->print(work);
    std::printf("\n");
  }

  void make_tokens() {
    const auto windows = static_cast<std::uint32_t>(2 * s_.batch);
    std::vector<std::uint32_t> text(windows * static_cast<std::size_t>(s_.sequence) + 1);
    for (std::size_t i = 0; i < text.size(); ++i) {  // low tokens are more frequent
      const float u = uniform01(philox(static_cast<std::uint32_t>(i), 1, 0, 0, 7).word[0]);
      text[i] = static_cast<std::uint32_t>(u * u * u * static_cast<float>(s_.vocabulary));
    }
    const Tensor memory = empty(DType::u8, {static_cast<std::int64_t>(text.size() * 4)});
    device_.copy_to_device(memory.data, text.data(), text.size() * 4);
    const TokenSegmentView segment{memory.data, 0};
    const Tensor segments = empty(DType::u8, {sizeof(segment)});
    device_.copy_to_device(segments.data, &segment, sizeof(segment));
    const Tensor state = empty(DType::u8, {sizeof(StepState)});
    batch_.source = {segments.as<const TokenSegmentView>(), 1, windows, static_cast<std::uint32_t>(s_.sequence), 4};
    batch_.order = {1, windows, 2, static_cast<std::uint32_t>(s_.batch), 0, true};
    batch_.step = {state.as<const StepState>(), 0};
    batch_.count = s_.batch;
    dropout_ = {0.0f, 5, 1, 0, batch_.step};
  }

  void embedding() {
    const double activation = 2.0 * static_cast<double>(s_.rows() * s_.width);
    const double table = static_cast<double>(s_.vocabulary * s_.width);
    const Tensor token = random({s_.vocabulary, s_.width}), position = random({s_.sequence, s_.width});
    const Tensor out = random({s_.batch, s_.sequence, s_.width});
    const Tensor head = random(DType::f32, {s_.padded, s_.width});
    const Tensor dtoken = empty(gradients_, token.shape), dposition = empty(gradients_, position.shape);
    time("embed_tokens", activation + std::min(activation, 2 * table), 0,
         [&] { device_.get<EmbeddingOps>().embed_tokens(batch_, token, position, dropout_, out); });
    time("embed_tokens_backward", 2 * activation + table * (4.0 + static_cast<double>(size_of(gradients_))), 0, [&] {
      device_.get<EmbeddingOps>().embed_tokens_backward(batch_, dropout_, out, head, dtoken, dposition, false);
    });
  }

  void norms() {
    const double activation = 2.0 * static_cast<double>(s_.rows() * s_.width);
    const Shape shape{s_.batch, s_.sequence, s_.width};
    const Tensor x = random(shape), branch = random(shape), sum = empty(shape), y = empty(shape), dy = random(shape);
    const Tensor weight = random({s_.width}), bias = random({s_.width});
    const Tensor statistics = empty(DType::f32, {s_.rows(), 2});
    const Tensor dweight = empty(gradients_, {s_.width}), dbias = empty(gradients_, {s_.width});
    Dropout drops = dropout_;
    drops.rate = 0.1f;
    time("layer_norm", 2 * activation, 0,
         [&] { device_.get<NormOps>().layer_norm(x, weight, bias, 1e-5f, y, statistics); });
    time("add_layer_norm", 4 * activation, 0,
         [&] { device_.get<NormOps>().add_layer_norm(x, branch, dropout_, weight, bias, 1e-5f, sum, y, statistics); });
    time("add_layer_norm, dropout", 4 * activation, 0,
         [&] { device_.get<NormOps>().add_layer_norm(x, branch, drops, weight, bias, 1e-5f, sum, y, statistics); });
    const Tensor sums = empty(gradients_, {s_.width}), none = {};
    time("layer_norm_backward", 4 * activation, 0, [&] {
      device_.get<NormOps>().layer_norm_backward(x, weight, statistics, dy, branch, y, dweight, dbias, none, false);
    });
    time("layer_norm_backward, sums of dx", 4 * activation, 0, [&] {
      device_.get<NormOps>().layer_norm_backward(x, weight, statistics, dy, branch, y, dweight, dbias, sums, false);
    });
    time("dropout", 2 * activation, 0, [&] { device_.get<ActivationOps>().dropout(x, drops, y); });
  }

  Tensor empty_or_fp8(DType dtype, const Shape& shape) {
    return is_fp8(dtype) ? empty_fp8(dtype, shape) : empty(dtype, shape);
  }
  void rms_norms(DType output) {
    const double elements = static_cast<double>(s_.rows() * s_.width);
    const Shape shape{s_.batch, s_.sequence, s_.width};
    const Tensor x = random(shape), branch = random(shape), sum = empty(shape), y = empty_or_fp8(output, shape);
    const Tensor weight = random({s_.width}), statistics = empty(DType::f32, {s_.rows(), 1}), none = {};
    const double of_y = is_fp8(output) ? 3.0 : 2.0;  // values, and read to be transposed, and transposed
    auto& ops = device_.get<RmsNormOps>();
    time("rms_norm", (2 + of_y) * elements, 0, [&] { ops.rms_norm(x, weight, 1e-6f, y, statistics); });
    time("add_rms_norm", (6 + of_y) * elements, 0,
         [&] { ops.add_rms_norm(x, branch, dropout_, weight, 1e-6f, sum, y, statistics); });
    if (is_fp8(output)) return;
    const Tensor dy = random(shape), dweight = empty(gradients_, {s_.width});
    time("rms_norm_backward", 8 * elements, 0,
         [&] { ops.rms_norm_backward(x, weight, statistics, dy, branch, y, dweight, none, false); });
  }

  void swiglu(DType output, DType gradient) {
    const auto elements = static_cast<double>(s_.rows() * s_.hidden);
    const Shape shape{s_.rows(), s_.hidden}, wide{s_.rows(), 2 * s_.hidden};
    const Tensor pre = random(wide), y = empty_or_fp8(output, shape), dy = random(shape);
    const Tensor dpre = empty_or_fp8(gradient, wide);
    time("swiglu", 6 * elements, 0, [&] { device_.get<GatedOps>().swiglu(pre, y); });
    time("swiglu_backward", 10 * elements, 0, [&] { device_.get<GatedOps>().swiglu_backward(pre, dy, dpre, {}); });
  }

  /// Queries and keys before attention.
  void heads() {
    using Turn = GroupedAttentionOps::Turn;
    const GroupedHeads heads = s_.grouped_heads();
    const Tensor qkv = random({s_.batch, s_.sequence, heads.columns()}), y = empty(qkv.shape);
    const Tensor frequencies = random(DType::f32, {heads.head_size / 2}), weight = random({heads.head_size});
    const Tensor statistics = empty(DType::f32, {s_.rows(), heads.heads + heads.key_heads});
    const Tensor dquery = empty(gradients_, weight.shape), dkey = empty(gradients_, weight.shape);
    const double bytes = 2.0 * static_cast<double>(qkv.size());
    auto& ops = device_.get<GroupedAttentionOps>();
    time("rotate", 2 * bytes, 0, [&] { ops.rotate(qkv, heads, frequencies, nullptr, Turn::forward); });
    time("rotate back", 2 * bytes, 0, [&] { ops.rotate(qkv, heads, frequencies, nullptr, Turn::back); });
    time("normalise heads", 2 * bytes, 0, [&] { ops.normalise(qkv, heads, weight, weight, 1e-6f, y, statistics); });
    time("normalise_backward", 3 * bytes, 0,
         [&] { ops.normalise_backward(qkv, heads, weight, weight, statistics, y, dquery, dkey, false); });
  }

  void grouped_attention() {
    const GroupedHeads heads = s_.grouped_heads();
    const AttentionShape shape{s_.batch, heads.heads, heads.key_heads, s_.sequence, heads.head_size};
    const double flops = 2.0 * static_cast<double>(s_.rows() * s_.sequence * heads.width());
    const Tensor qkv = random({s_.batch, s_.sequence, heads.columns()}), dqkv = empty(qkv.shape);
    const Tensor out = empty({s_.batch, s_.sequence, heads.width()}), d_output = random(out.shape);
    const Tensor statistics = empty(DType::f32, {s_.batch, heads.heads, s_.sequence});
    const double rows = 2.0 * static_cast<double>(qkv.size()), outputs = 2.0 * static_cast<double>(out.size());
    auto& ops = device_.get<GroupedAttentionOps>();
    time("attention", rows + outputs, flops, [&] { ops.attention(qkv, heads, out, statistics); });
    time("attention_backward", 2 * rows + 2 * outputs, 2.5 * flops,
         [&] { ops.attention_backward(qkv, heads, out, statistics, d_output, dqkv); });
    attention_by_each(shape, {qkv.data, out.data, statistics.as<float>(), d_output.data, dqkv.data}, rows, flops);
  }

  void activations() {
    const double bytes = 2.0 * static_cast<double>(s_.rows() * s_.hidden);
    const Tensor pre = random({s_.rows(), s_.hidden}), y = random({s_.rows(), s_.hidden});
    const Tensor sums = empty(gradients_, {s_.hidden});
    time("gelu", 2 * bytes, 0, [&] { device_.get<LinearOps>().gelu(pre, y); });
    cuda::Scratch scratch;
    time("gelu_backward", 3 * bytes, 0, [&] { cuda::gelu_backward(pre, y, sums, false, scratch, stream_); });
  }

  void linear(const std::string& name, std::int64_t in, std::int64_t out) {
    const double flops = 2.0 * static_cast<double>(s_.rows() * in * out);
    const double bytes = 2.0 * static_cast<double>(s_.rows() * (in + out) + in * out);
    const Tensor x = random({s_.rows(), in}), weight = random({out, in}), y = random({s_.rows(), out});
    const Tensor bias = out == s_.padded ? Tensor{} : random({out});
    const Tensor dx = empty({s_.rows(), in}), none = {};
    const Tensor dweight = empty(bias ? gradients_ : DType::f32, {out, in});
    const Tensor dbias = bias ? empty(gradients_, {out}) : Tensor{};
    time(name + " forward", bytes, flops, [&] { device_.get<LinearOps>().linear(x, weight, bias, y); });
    time(name + " dx", bytes, flops,
         [&] { device_.get<LinearOps>().linear_backward(none, weight, y, dx, none, none, false); });
    time(name + " dweight", bytes, flops,
         [&] { device_.get<LinearOps>().linear_backward(x, weight, y, none, dweight, none, false); });
    if (!bias) return;
    time(name + " dbias", 2.0 * static_cast<double>(y.size()), 0,
         [&] { device_.get<LinearOps>().linear_backward(none, weight, y, none, none, dbias, false); });
    time(name + " dweight and dbias", bytes, flops,
         [&] { device_.get<LinearOps>().linear_backward(x, weight, y, none, dweight, dbias, false); });
  }

  void epilogue(const std::string& name, double bytes, double flops, const cuda::Gemm& gemm, cuda::Epilogue epilogue,
                const cuda::GemmTensors& tensors) {
    if (device_.get<cuda::MatmulPlans>().try_gemm(gemm, epilogue, tensors, stream_)) {
      time(name, bytes, flops, [&] { device_.get<cuda::MatmulPlans>().try_gemm(gemm, epilogue, tensors, stream_); });
    } else {
      std::printf("%-44s none\n", name.c_str());
    }
  }

  /// GELU as an epilogue and as a kernel of its own.
  void fused_products() {
    const double flops = 2.0 * static_cast<double>(s_.rows() * s_.width * s_.hidden);
    const double bytes = 2.0 * static_cast<double>(s_.rows() * (s_.width + 2 * s_.hidden));
    const Tensor x = random({s_.rows(), s_.width}), up = random({s_.hidden, s_.width});
    const Tensor down = random({s_.width, s_.hidden}), bias = random({s_.hidden});
    const Tensor pre = random({s_.rows(), s_.hidden}), y = random({s_.rows(), s_.hidden});
    time("linear_gelu", bytes, flops, [&] { device_.get<LinearOps>().linear_gelu(x, up, bias, pre, y, false); });
    epilogue("linear_gelu, cuBLASLt", bytes, flops,
             {s_.rows(), s_.hidden, s_.width, false, true, DType::bf16, DType::bf16, false}, cuda::Epilogue::gelu_bias,
             {.a = x.data, .b = up.data, .c = y.data, .vector = bias.data, .matrix = pre.data});
    const Tensor dpre = empty(pre.shape);
    const Tensor sums = empty(gradients_, {s_.hidden});
    time("linear_gelu_backward", bytes, flops,
         [&] { device_.get<LinearOps>().linear_gelu_backward(down, x, pre, dpre, sums, false); });
    time("linear_gelu_backward, dbias added", bytes, flops,
         [&] { device_.get<LinearOps>().linear_gelu_backward(down, x, pre, dpre, sums, true); });
    epilogue("linear_gelu_backward, cuBLASLt", bytes, flops,
             {s_.rows(), s_.hidden, s_.width, false, false, DType::bf16, DType::bf16, false},
             cuda::Epilogue::gelu_gradient, {.a = x.data, .b = down.data, .c = dpre.data, .matrix = pre.data});
  }

  void copies_fp8() {
    for (const std::int64_t columns : {s_.width, 3 * s_.width, s_.hidden}) {
      const Tensor x = random({s_.rows(), columns}), y = empty_fp8(DType::e5m2, x.shape);
      const Tensor sums = empty(gradients_, {columns});
      const double bytes = 4.0 * static_cast<double>(x.size());
      const std::string name = "to_fp8 of " + std::to_string(columns);
      time(name, bytes, 0, [&] { device_.get<QuantisationOps>().to_fp8(x, y, Tensor{}, false); });
      time(name + ", sums", bytes, 0, [&] { device_.get<QuantisationOps>().to_fp8(x, y, sums, false); });
    }
    const Tensor weight = random({s_.hidden, s_.width}), copy = empty_fp8(DType::e4m3, weight.shape);
    time("to_fp8 of a weight", 4.0 * static_cast<double>(weight.size()), 0,
         [&] { device_.get<QuantisationOps>().to_fp8(weight, copy, Tensor{}, false); });
    const std::vector<DType> formats(144, DType::e4m3);
    const auto scales = device_.get<QuantisationOps>().make_scales(
        formats, empty(DType::f32, {static_cast<std::int64_t>(formats.size()), QuantisationOps::kStateSize}));
    time("renew 144 scales", 0, 0, [&] { scales->renew(); });
  }

  void norms_fp8() {
    const auto elements = static_cast<double>(s_.rows() * s_.width);
    const Shape shape{s_.batch, s_.sequence, s_.width};
    const Tensor x = random(shape), branch = random(shape), sum = empty(shape), y = empty_fp8(DType::e4m3, shape);
    const Tensor weight = random({s_.width}), bias = random({s_.width});
    const Tensor statistics = empty(DType::f32, {s_.rows(), 2});
    time("layer_norm", 5 * elements, 0,
         [&] { device_.get<NormOps>().layer_norm(x, weight, bias, 1e-5f, y, statistics); });
    time("add_layer_norm", 9 * elements, 0,
         [&] { device_.get<NormOps>().add_layer_norm(x, branch, dropout_, weight, bias, 1e-5f, sum, y, statistics); });
  }

  void linear_fp8(const std::string& name, std::int64_t in, std::int64_t out) {
    const double flops = 2.0 * static_cast<double>(s_.rows() * in * out);
    const auto bytes = static_cast<double>(s_.rows() * in + in * out);
    const Tensor x = random_fp8(DType::e4m3, {s_.rows(), in}), weight = random_fp8(DType::e4m3, {out, in});
    const Tensor dy = random_fp8(DType::e5m2, {s_.rows(), out}), bias = random({out}), none = {};
    const Tensor y = empty(dy.shape), dx = empty(x.shape), dweight = empty(gradients_, weight.shape);
    const auto outputs = static_cast<double>(dy.size()), inputs = static_cast<double>(x.size());
    time(name + " forward", bytes + 2 * outputs, flops, [&] { device_.get<LinearOps>().linear(x, weight, bias, y); });
    time(name + " dx", bytes + outputs + inputs, flops,
         [&] { device_.get<LinearOps>().linear_backward(none, weight, dy, dx, none, none, false); });
    time(name + " dweight", bytes + outputs, flops,
         [&] { device_.get<LinearOps>().linear_backward(x, weight, dy, none, dweight, none, false); });
  }

  void gelu_fp8() {
    const Shape shape{s_.rows(), s_.hidden};
    const auto elements = static_cast<double>(element_count(shape));
    const double flops = 2.0 * elements * static_cast<double>(s_.width);
    const Tensor pre = random(shape), y = empty_fp8(DType::e4m3, shape), dpre = empty_fp8(DType::e5m2, shape);
    const Tensor down = random_fp8(DType::e4m3, {s_.width, s_.hidden});
    const Tensor dy = random_fp8(DType::e5m2, {s_.rows(), s_.width}), sums = empty(gradients_, {s_.hidden});
    time("gelu", 4 * elements, 0, [&] { device_.get<LinearOps>().gelu(pre, y); });
    time("linear_gelu_backward and dbias", 8 * elements, flops,
         [&] { device_.get<LinearOps>().linear_gelu_backward(down, dy, pre, dpre, sums, false); });
  }

  void attention() {
    const AttentionShape shape{s_.batch, s_.heads, s_.heads, s_.sequence, s_.width / s_.heads};
    const double flops = 2.0 * static_cast<double>(s_.rows() * s_.sequence * s_.width);  // causal: half of the square
    const double activation = 2.0 * static_cast<double>(s_.rows() * s_.width);
    const Tensor qkv = random({s_.batch, s_.sequence, 3 * s_.width}), dqkv = empty(qkv.shape);
    const Tensor out = empty({s_.batch, s_.sequence, s_.width}), d_output = random(out.shape);
    const Tensor statistics = empty(DType::f32, {s_.batch, s_.heads, s_.sequence});
    time("attention", 4 * activation, flops,
         [&] { device_.get<AttentionOps>().attention(qkv, s_.heads, out, statistics); });
    time("attention_backward", 8 * activation, 2.5 * flops,
         [&] { device_.get<AttentionOps>().attention_backward(qkv, s_.heads, out, statistics, d_output, dqkv); });
    attention_by_each(shape, {qkv.data, out.data, statistics.as<float>(), d_output.data, dqkv.data}, 3 * activation,
                      flops);
  }

  /// Every implementation. `rows`: bytes of queries, keys and values.
  void attention_by_each(const AttentionShape& shape, const cuda::AttentionTensors& t, double rows, double flops) {
    const double activation = 2.0 * static_cast<double>(shape.batch * shape.sequence * shape.width());
    const Tensor deltas = empty(DType::f32, {shape.batch, shape.heads, shape.sequence});
    const double forward = rows + activation, backward = 2 * rows + 2 * activation;
    time("attention, plain", forward, flops, [&] { cuda::plain_attention(shape, t, DType::bf16, stream_); });
    time("attention deltas", 2 * activation, 0,
         [&] { cuda::attention_deltas(shape, t, DType::bf16, deltas.as<float>(), stream_); });
    time("attention_backward, plain", backward, 2.5 * flops,
         [&] { cuda::plain_attention_backward(shape, t, DType::bf16, deltas.as<float>(), stream_); });
    if (cuda::suits_mma_attention(shape, t)) {
      time("attention, mma", forward, flops, [&] { cuda::mma_attention(shape, t, stream_); });
      time("attention_backward, mma", backward, 2.5 * flops,
           [&] { cuda::mma_attention_backward(shape, t, deltas.as<float>(), stream_); });
    }
    if (suits_short_attention(shape, DType::bf16, device_.gpu().value())) {
      time("attention_backward, short", backward, 2.5 * flops,
           [&] { cuda::short_attention_backward(shape, t, stream_); });
    }
    cuda::Scratch scratch;
    attention_by_warpgroups(shape, t, scratch, {forward, backward}, flops);
    cuda::AttentionPlans plans(stream_, scratch);
    if (!plans.forward(shape, t)) return;
    time("attention, cuDNN", forward, flops, [&] { plans.forward(shape, t); });
    if (!plans.backward(shape, t)) return;
    time("attention_backward, cuDNN", backward, 2.5 * flops, [&] { plans.backward(shape, t); });
  }

  struct PassBytes {
    double forward, backward;
  };
  /// On Hopper.
  void attention_by_warpgroups(const AttentionShape& shape, const cuda::AttentionTensors& t, cuda::Scratch& scratch,
                               const PassBytes& bytes, double flops) {
    const int free = device_.compute_multiprocessors();
    const GpuProperties gpu = device_.gpu().value();
    if (gpu.warpgroups && shape.head_size == 128 && shape.sequence % 128 == 0) {  // also where cuDNN should be faster
      time("attention, wgmma", bytes.forward, flops, [&] { cuda::wgmma_128_attention(shape, t, free, stream_); });
    }
    const AttentionBackwardPlan plan = plan_attention_backward(shape, DType::bf16, gpu);
    const bool by_64 = plan.kernels == AttentionKernels::heads_of_64;
    if (!by_64 && plan.kernels != AttentionKernels::heads_of_128) return;
    void* workspace = scratch.reserve(plan.scratch_bytes, stream_);
    time("attention_backward, wgmma", bytes.backward, 2.5 * flops, [&] {
      if (by_64) {
        cuda::wgmma_attention_backward(shape, t, workspace, free, stream_);
      } else {
        cuda::wgmma_128_attention_backward(shape, t, plan.parts, workspace, free, stream_);
      }
    });
  }

  /// Training puts the gradient in the place of the logits. Here it has memory of its own, since the next run would
  /// read it as logits; the kernel and its bytes are the same.
  void loss() {
    const Tensor logits = random({s_.rows(), s_.padded}), dlogits = empty(logits.shape);
    const Tensor sums = empty(DType::u8, {sizeof(MetricSums)});
    const double bytes = 2.0 * static_cast<double>(logits.size());
    auto* metrics = sums.as<MetricSums>();
    time("token_cross_entropy, loss alone", bytes, 0, [&] {
      device_.get<LossOps>().token_cross_entropy(logits, batch_, 0, s_.vocabulary, 0.0f, Tensor{}, metrics);
    });
    time("token_cross_entropy, not in place", 2 * bytes, 0, [&] {
      device_.get<LossOps>().token_cross_entropy(logits, batch_, 0, s_.vocabulary, 1e-5f, dlogits, metrics);
    });
    const double width = static_cast<double>(s_.width), cells = static_cast<double>(logits.size());
    const Tensor x = random({s_.rows(), s_.width}), weight = random({s_.padded, s_.width}), dx = empty(x.shape);
    time("output_layer", 3 * bytes, 4 * cells * width, [&] {
      device_.get<LinearOps>().linear(x, weight, Tensor{}, dlogits);
      device_.get<LossOps>().token_cross_entropy(dlogits, batch_, 0, s_.vocabulary, 1e-5f, dlogits, metrics);
      device_.get<LinearOps>().linear_backward(Tensor{}, weight, dlogits, dx, Tensor{}, Tensor{}, false);
    });
    for (int tensors = 0; tensors < 6; ++tensors) buffers_.pop_back();
  }

  CudaDevice& device_;
  Sizes s_;
  DType gradients_;
  Sustained* sustained_;
  cudaStream_t stream_;
  TokenBatch batch_;
  Dropout dropout_;
  std::deque<Buffer> buffers_;
  std::vector<std::unique_ptr<Fp8Scales>> scales_;
};

std::string names_of_sizes() {
  std::string names;
  for (const Sizes& sizes : kSizes) names += (names.empty() ? "" : ", ") + std::string(sizes.name);
  return names;
}

int bench(const std::vector<std::string>& arguments) {
  DeviceOptions options{.precision = Precision::bf16};
  DType gradients = DType::bf16;
  std::vector<Sizes> chosen;
  double seconds = 0.0;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& argument = arguments[i];
    const auto* found =
        std::find_if(std::begin(kSizes), std::end(kSizes), [&](const Sizes& sizes) { return argument == sizes.name; });
    if (argument == "--tune") {
      options.tune = true;
    } else if (argument == "--fp32-gradients") {
      gradients = DType::f32;
    } else if (argument == "--fp8") {
      options.fp8 = true;
    } else if (argument == "--seconds" && i + 1 < arguments.size()) {
      seconds = std::atof(arguments[++i].c_str());
      if (!(seconds >= 0.5)) usage_error("gpt_ops_bench: --seconds {}: 0.5 or more", arguments[i]);
    } else if (found != std::end(kSizes)) {
      chosen.push_back(*found);
    } else {
      usage_error("gpt_ops_bench: {} is not known; sizes are {}", argument, names_of_sizes());
    }
  }
  if (chosen.empty()) chosen.assign(std::begin(kSizes), std::end(kSizes));
  CudaDevice device(options, 0);
  std::printf("%s, cuDNN %s, %s, tune %s\n", device.name().c_str(), cudnn_version().c_str(),
              options.fp8 ? "fp8" : "bf16", options.tune ? "on" : "off");
  std::optional<Sustained> sustained;
  if (seconds > 0.0) sustained.emplace(device, seconds);
  for (const Sizes& sizes : chosen) {
    GptOps ops(device, sizes, gradients, sustained ? &*sustained : nullptr);
    options.fp8 ? ops.run_fp8() : ops.run();
  }
  return 0;
}

}  // namespace
}  // namespace ddptrain

int main(int argc, char** argv) {
  try {
    return ddptrain::bench({argv + 1, argv + argc});
  } catch (const ddptrain::UsageError& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "gpt_ops_bench: %s\n", error.what());
    return 1;
  }
}
