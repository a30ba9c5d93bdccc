#include "runtime/ops/cuda/gemm/matmul.h"

#include <cublasLt.h>
#include <spdlog/spdlog.h>

#include <algorithm>
#include <compare>
#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/core/error.h"
#include "runtime/ops/cuda/gemm/linear_kernels.h"
#include "runtime/ops/cuda/gemm/tuner.h"

namespace ddptrain::cuda {

namespace {

void check(cublasStatus_t status, const char* call, const char* file, int line) {
  if (status != CUBLAS_STATUS_SUCCESS) fail_call(call, file, line, cublasLtGetStatusString(status));
}
#define DDP_CUBLAS(call) check((call), #call, __FILE__, __LINE__)

using LtHandle = Handle<cublasLtHandle_t, cublasLtDestroy>;
using DescHandle = Handle<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using LayoutHandle = Handle<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using PreferenceHandle = Handle<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

constexpr std::size_t kWorkspaceBytes = std::size_t{32} << 20;
constexpr std::size_t kLargeWorkspaceBytes = std::size_t{128} << 20;
constexpr int kCandidates = 8;               // of the heuristic, that are timed
constexpr std::size_t kVaried = 4;           // of these, the fastest, whose variants are timed
constexpr std::uint32_t kMaxAlignment = 16;  // more makes no difference to speed, but would to the choice of algorithm

cudaDataType_t type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      fail("matrix products of {} are not provided", name_of(dtype));
  }
}

std::uint32_t alignment_of(const void* pointer) {
  std::uint32_t bytes = kMaxAlignment;
  while (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) bytes /= 2;
  return bytes;
}

/// Properties of a multiplication that decide on the algorithm.
struct Key {
  Gemm gemm;
  Epilogue epilogue;
  std::uint32_t align_a;
  std::uint32_t align_b;
  std::uint32_t align_c;

  auto operator<=>(const Key&) const = default;
};

/// Bytes of memory for partial sums. Large results of long sums (3,584 columns of 37,888 terms, at 4,096 rows) get
/// more, so that a sum may be split in two: they have few tiles, and the last of them would leave many multiprocessors
/// idle.
std::size_t workspace_bytes(const Gemm& g) {
  const bool has_long_sums = !g.transpose_a && g.k >= 4 * std::max(g.m, g.n);
  const std::size_t halves = 2 * sizeof(float) * static_cast<std::size_t>(g.m * g.n);
  return has_long_sums && halves > kWorkspaceBytes ? kLargeWorkspaceBytes : kWorkspaceBytes;
}

struct Plan {
  DescHandle desc;
  LayoutHandle left;
  LayoutHandle right;
  LayoutHandle result;
  float beta = 0.0f;  ///< 1 adds to the result.
  std::size_t workspace_bytes = kWorkspaceBytes;
  cublasLtMatmulAlgo_t algorithm = {};
  bool provisional = false;  ///< The heuristic's first choice, where timing was not possible yet.
};

void set(const DescHandle& desc, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  DDP_CUBLAS(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)));
}

void set(const PreferenceHandle& preference, cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
  DDP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

/// False if the algorithm has no such attribute.
bool set(cublasLtMatmulAlgo_t& algorithm, cublasLtMatmulAlgoConfigAttributes_t attribute, const auto& value) {
  return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, attribute, &value, sizeof(value)) == CUBLAS_STATUS_SUCCESS;
}

/// Row-major [rows, columns] as cuBLASLt sees it: column-major [columns, rows].
LayoutHandle transposed_layout(cudaDataType_t type, std::int64_t rows, std::int64_t columns) {
  LayoutHandle layout;
  DDP_CUBLAS(cublasLtMatrixLayoutCreate(layout.out(), type, static_cast<std::uint64_t>(columns),
                                        static_cast<std::uint64_t>(rows), columns));
  return layout;
}

struct EpilogueFacts {
  cublasLtEpilogue_t value;
  const char* name;
  bool has_matrix;
};

const EpilogueFacts& facts_of(Epilogue epilogue) {
  static constexpr EpilogueFacts kByEpilogue[] = {{CUBLASLT_EPILOGUE_DEFAULT, "none", false},
                                                  {CUBLASLT_EPILOGUE_BIAS, "bias", false},
                                                  {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, "gelu and bias", true},
                                                  {CUBLASLT_EPILOGUE_DGELU, "gelu gradient", true}};
  return kByEpilogue[static_cast<std::size_t>(epilogue)];
}

bool equal(const cublasLtMatmulAlgo_t& a, const cublasLtMatmulAlgo_t& b) {
  return std::equal(std::begin(a.data), std::end(a.data), std::begin(b.data));
}

/// Algorithms that differ from `algorithm` in the order of their tiles, in the shape of their clusters, or in an option
/// that cuBLASLt does not explain. The heuristic leaves out some of the fastest. Not all serve for all products.
std::vector<cublasLtMatmulAlgo_t> variants_of(const cublasLtMatmulAlgo_t& algorithm) {
  constexpr std::int32_t kLastOption = 7;
  std::int32_t last_option = 0;
  std::uint16_t own_cluster = CUBLASLT_CLUSTER_SHAPE_AUTO;
  std::size_t written = 0;
  if (cublasLtMatmulAlgoCapGetAttribute(&algorithm, CUBLASLT_ALGO_CAP_CUSTOM_OPTION_MAX, &last_option,
                                        sizeof(last_option), &written) != CUBLAS_STATUS_SUCCESS ||
      cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, &own_cluster,
                                           sizeof(own_cluster), &written) != CUBLAS_STATUS_SUCCESS) {
    return {};
  }
  std::vector<std::uint16_t> clusters = {own_cluster};
  if (own_cluster != CUBLASLT_CLUSTER_SHAPE_AUTO) {
    clusters.insert(clusters.end(),
                    {CUBLASLT_CLUSTER_SHAPE_1x1x1, CUBLASLT_CLUSTER_SHAPE_2x1x1, CUBLASLT_CLUSTER_SHAPE_1x2x1});
  }
  std::vector<cublasLtMatmulAlgo_t> variants;
  for (const std::uint16_t cluster : clusters) {
    for (const std::uint32_t swizzling : {0, 1}) {
      for (std::int32_t option = 0; option <= std::min(last_option, kLastOption); ++option) {
        cublasLtMatmulAlgo_t variant = algorithm;
        if (set(variant, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster) &&
            set(variant, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzling) &&
            set(variant, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, static_cast<std::uint32_t>(option))) {
          variants.push_back(variant);
        }
      }
    }
  }
  return variants;
}

}  // namespace

std::string name_of(const Gemm& g) {
  return fmt::format("{} x {} x {} {}{} {} {} {}{}", g.m, g.n, g.k, g.transpose_a ? 't' : 'n',
                     g.transpose_b ? 't' : 'n', name_of(g.in), name_of(g.in_b.value_or(g.in)), g.accumulate ? "+ " : "",
                     name_of(g.out));
}

struct MatmulPlans::Impl {
  explicit Impl(Device& device)
      : watch(device.watch()),
        precision(device.precision()),
        choices(device.options().tune ? &device.get<TunedChoices>() : nullptr) {
    DDP_CUBLAS(cublasLtCreate(handle.out()));
  }

  Watch& watch;
  Precision precision;
  TunedChoices* choices;  ///< Null without DeviceOptions::tune.
  LtHandle handle;
  std::map<std::pair<cudaStream_t, std::size_t>, DeviceMemory> workspaces;  ///< By stream and bytes.
  std::map<Key, std::optional<Plan>> plans;                                 ///< Empty where cuBLASLt has no algorithm.

  /// cuBLASLt is column-major, where every row-major matrix appears as its transpose. So it is given
  /// c^T = op(b)^T op(a)^T: left = b, right = a, each transposed where op transposes it.
  Plan describe(const Key& key) const {
    const Gemm& g = key.gemm;
    DDP_CHECK(g.m > 0 && g.n > 0 && g.k > 0, "an empty matrix product: m {}, n {}, k {}", g.m, g.n, g.k);
    const bool tf32 = g.in == DType::f32 && precision == Precision::tf32;
    Plan plan;
    plan.beta = g.accumulate ? 1.0f : 0.0f;
    plan.workspace_bytes = workspace_bytes(g);
    DDP_CUBLAS(cublasLtMatmulDescCreate(plan.desc.out(), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F,
                                        CUDA_R_32F));
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
    set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
    if (key.epilogue != Epilogue::none) {
      set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, facts_of(key.epilogue).value);
      set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(g.out)));
    }
    if (facts_of(key.epilogue).has_matrix) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.n);
    if (g.in == DType::e4m3) {  // forward alone: the sums of gradients keep their precision
      set(plan.desc, CUBLASLT_MATMUL_DESC_FAST_ACCUM, std::int8_t{1});
    }
    const cudaDataType_t left = type_of(g.in_b.value_or(g.in));
    const cudaDataType_t right = type_of(g.in);
    plan.left = g.transpose_b ? transposed_layout(left, g.n, g.k) : transposed_layout(left, g.k, g.n);
    plan.right = g.transpose_a ? transposed_layout(right, g.k, g.m) : transposed_layout(right, g.m, g.k);
    plan.result = transposed_layout(type_of(g.out), g.m, g.n);
    return plan;
  }

  /// By the heuristic's estimate, best first. Partial sums, if the sum over k is split, stay in f32.
  std::vector<cublasLtMatmulAlgo_t> candidates(const Key& key, const Plan& plan) const {
    PreferenceHandle preference;
    DDP_CUBLAS(cublasLtMatmulPreferenceCreate(preference.out()));
    set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, plan.workspace_bytes);
    set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
        static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
    set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
    cublasLtMatmulHeuristicResult_t results[kCandidates] = {};
    int found = 0;
    const cublasStatus_t status = cublasLtMatmulAlgoGetHeuristic(
        handle.get(), plan.desc.get(), plan.left.get(), plan.right.get(), plan.result.get(), plan.result.get(),
        preference.get(), choices != nullptr ? kCandidates : 1, results, &found);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) return {};
    check(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
    std::vector<cublasLtMatmulAlgo_t> algorithms;
    for (int i = 0; i < found; ++i) algorithms.push_back(results[i].algo);
    return algorithms;
  }

  std::optional<Plan> make_plan(const Key& key, const GemmTensors& tensors, cudaStream_t stream) const {
    Plan plan = describe(key);
    const std::string name = work(key);
    const std::string* kept = choices == nullptr ? nullptr : choices->find(name);
    const bool refused = kept != nullptr && !take(*kept, plan);
    if (kept != nullptr && !refused) return plan;
    if (refused) {
      spdlog::warn("{}: cuBLASLt does not take the algorithm that was kept", name);
      choices->refuse(name);
    }
    const std::vector<cublasLtMatmulAlgo_t> algorithms = candidates(key, plan);
    if (algorithms.empty()) return std::nullopt;
    plan.algorithm = algorithms.front();
    if (refused || algorithms.size() == 1) return plan;
    plan.provisional = !can_time(stream);
    if (plan.provisional) return plan;
    pick_fastest(key, plan, algorithms, tensors, stream);
    const std::string choice = choices->choose(name, choice_of(&plan.algorithm, sizeof(plan.algorithm)));
    // Another rank chose. If its slice of a layer has another epilogue, its algorithm may not serve here.
    if (!take(choice, plan)) plan.algorithm = algorithms.front();
    return plan;
  }

  bool can_time(cudaStream_t stream) const { return choices != nullptr && choices->open() && !is_capturing(stream); }
  std::string work(const Key& key) const {
    return fmt::format("matrix product: {} {}, epilogue {}, aligned to {} {} {}", name_of(precision), name_of(key.gemm),
                       facts_of(key.epilogue).name, key.align_a, key.align_b, key.align_c);
  }

  /// False where cuBLASLt does not take it.
  bool take(const std::string& kept, Plan& plan) const {
    return read_choice(kept, &plan.algorithm, sizeof(plan.algorithm)) && serves(plan.algorithm, plan);
  }
  bool serves(const cublasLtMatmulAlgo_t& algorithm, const Plan& plan) const {
    cublasLtMatmulHeuristicResult_t checked = {};
    return cublasLtMatmulAlgoCheck(handle.get(), plan.desc.get(), plan.left.get(), plan.right.get(), plan.result.get(),
                                   plan.result.get(), &algorithm, &checked) == CUBLAS_STATUS_SUCCESS &&
           checked.workspaceSize <= plan.workspace_bytes;
  }

  void pick_fastest(const Key& key, Plan& plan, const std::vector<cublasLtMatmulAlgo_t>& algorithms,
                    GemmTensors tensors, cudaStream_t stream) const {
    const Watch::Phase phase(watch, "tuning");
    DeviceMemory copy;  // what is added to must not be added to again and again
    if (key.gemm.accumulate) {
      DDP_CUDA(cudaMalloc(copy.out(), static_cast<std::size_t>(key.gemm.m * key.gemm.n) * size_of(key.gemm.out)));
      tensors.c = copy.get();
    }
    const auto ways_of = [&](const std::vector<cublasLtMatmulAlgo_t>& tried) {
      std::vector<std::function<bool()>> ways;
      for (const cublasLtMatmulAlgo_t& algorithm : tried) {
        ways.push_back([&] { return execute(plan, algorithm, tensors, stream) == CUBLAS_STATUS_SUCCESS; });
      }
      return ways;
    };
    const std::vector<float> times = milliseconds_of(ways_of(algorithms), stream);
    std::vector<std::size_t> order = fastest_first(times);
    if (order.empty()) return;
    plan.algorithm = algorithms[order.front()];
    if (times[order.front()] < kLongMilliseconds) return;
    order.resize(std::min(order.size(), kVaried));
    std::vector<cublasLtMatmulAlgo_t> tried;
    const auto is_new = [&](const cublasLtMatmulAlgo_t& algorithm) {
      return std::none_of(tried.begin(), tried.end(), [&](const auto& other) { return equal(algorithm, other); });
    };
    for (const std::size_t i : order) tried.push_back(algorithms[i]);
    for (const std::size_t i : order) {
      for (const cublasLtMatmulAlgo_t& variant : variants_of(algorithms[i])) {
        if (is_new(variant) && serves(variant, plan)) tried.push_back(variant);
      }
    }
    if (const auto fastest = fastest_of(ways_of(tried), stream)) plan.algorithm = tried[*fastest];
  }

  cublasStatus_t execute(const Plan& plan, const cublasLtMatmulAlgo_t& algorithm, const GemmTensors& t,
                         cudaStream_t stream) const {
    if (t.vector != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, t.vector);
    if (t.matrix != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, t.matrix);
    if (t.scale_a != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, t.scale_a);
    if (t.scale_b != nullptr) set(plan.desc, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, t.scale_b);
    const float alpha = 1.0f;
    return cublasLtMatmul(handle.get(), plan.desc.get(), &alpha, t.b, plan.left.get(), t.a, plan.right.get(),
                          &plan.beta, t.c, plan.result.get(), t.c, plan.result.get(), &algorithm,
                          workspaces.at({stream, plan.workspace_bytes}).get(), plan.workspace_bytes, stream);
  }

  void prepare(std::size_t bytes, cudaStream_t stream) {
    if (workspaces.contains({stream, bytes})) return;
    DDP_CHECK(!is_capturing(stream), "a matrix product must run once on a stream before it is captured there");
    DDP_CUDA(cudaMalloc(workspaces[{stream, bytes}].out(), bytes));
  }

  bool run(const Gemm& gemm, Epilogue epilogue, const GemmTensors& tensors, cudaStream_t stream) {
    prepare(workspace_bytes(gemm), stream);
    const Key key{gemm, epilogue, alignment_of(tensors.a), alignment_of(tensors.b), alignment_of(tensors.c)};
    auto found = plans.find(key);
    if (found != plans.end() && found->second && found->second->provisional && can_time(stream)) {
      plans.erase(found);
      found = plans.end();
    }
    if (found == plans.end()) found = plans.emplace(key, make_plan(key, tensors, stream)).first;
    if (!found->second) return false;
    const Plan& plan = *found->second;
    DDP_CUBLAS(execute(plan, plan.algorithm, tensors, stream));
    return true;
  }
};

MatmulPlans::MatmulPlans(Device& device) : impl_(std::make_unique<Impl>(device)) {}

MatmulPlans::~MatmulPlans() = default;

std::unique_ptr<MatmulPlans> MatmulPlans::make(Device& device) { return std::make_unique<MatmulPlans>(device); }

bool MatmulPlans::try_gemm(const Gemm& gemm, Epilogue epilogue, const GemmTensors& tensors, cudaStream_t stream) {
  DDP_CHECK(epilogue == Epilogue::none || !gemm.accumulate, "a matrix product accumulates or has an epilogue");
  return impl_->run(gemm, epilogue, tensors, stream);
}

void MatmulPlans::gemm(const Gemm& gemm, const GemmTensors& tensors, cudaStream_t stream) {
  if (tensors.vector != nullptr && try_gemm(gemm, Epilogue::bias, tensors, stream)) return;
  Gemm plain = gemm;
  if (tensors.vector != nullptr) {  // there is no algorithm with bias
    repeat_row(tensors.vector, gemm.m, gemm.n, gemm.out, tensors.c, stream);
    plain.accumulate = true;
  }
  GemmTensors operands = tensors;
  operands.vector = nullptr;
  DDP_CHECK(try_gemm(plain, Epilogue::none, operands, stream),
            "cuBLASLt has no algorithm for a product of {} x {} x {} in {}", gemm.m, gemm.n, gemm.k, name_of(gemm.in));
}

}  // namespace ddptrain::cuda
