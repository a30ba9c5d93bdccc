#include "runtime/backend/cuda/matmul.h"

#include <cublasLt.h>

#include <algorithm>
#include <compare>
#include <map>
#include <optional>

#include "runtime/backend/cuda/repeat_row.h"
#include "runtime/core/error.h"

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
constexpr std::uint32_t kMaxAlignment = 16;  // more makes no difference to speed, but would to the choice of algorithm

cudaDataType_t type_of(DType dtype) {
  DDP_CHECK(dtype == DType::bf16 || dtype == DType::f32, "matrix products of {} are not provided", name_of(dtype));
  return dtype == DType::bf16 ? CUDA_R_16BF : CUDA_R_32F;
}

std::uint32_t alignment_of(const void* pointer) {
  std::uint32_t bytes = kMaxAlignment;
  while (reinterpret_cast<std::uintptr_t>(pointer) % bytes != 0) bytes /= 2;
  return bytes;
}

/// What decides on the algorithm.
struct Key {
  Gemm gemm;
  bool bias;
  std::uint32_t align_a, align_b, align_c;

  auto operator<=>(const Key&) const = default;
};

struct Plan {
  DescHandle desc;
  LayoutHandle left, right, result;
  cublasLtMatmulAlgo_t algorithm;
  bool adds_bias = false;
};

void set(const DescHandle& desc, cublasLtMatmulDescAttributes_t attribute, const auto& value) {
  DDP_CUBLAS(cublasLtMatmulDescSetAttribute(desc.get(), attribute, &value, sizeof(value)));
}

void set(const PreferenceHandle& preference, cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
  DDP_CUBLAS(cublasLtMatmulPreferenceSetAttribute(preference.get(), attribute, &value, sizeof(value)));
}

/// Row-major [rows, columns] as cuBLASLt sees it: column-major [columns, rows].
LayoutHandle transposed_layout(DType dtype, std::int64_t rows, std::int64_t columns) {
  LayoutHandle layout;
  DDP_CUBLAS(cublasLtMatrixLayoutCreate(layout.out(), type_of(dtype), static_cast<std::uint64_t>(columns),
                                        static_cast<std::uint64_t>(rows), columns));
  return layout;
}

}  // namespace

struct MatmulPlans::Impl {
  Precision precision;
  LtHandle handle;
  DeviceMemory workspace;
  std::map<Key, Plan> plans;

  std::optional<Plan> make_plan(const Key& key) const;
  std::optional<cublasLtMatmulAlgo_t> choose_algorithm(const Key& key, const Plan& plan) const;
  const Plan& plan(const Key& key);
};

/// cuBLASLt is column-major, where every row-major matrix appears as its transpose. So it is given
/// c^T = op(b)^T op(a)^T: left = b, right = a, each transposed where op transposes it.
std::optional<Plan> MatmulPlans::Impl::make_plan(const Key& key) const {
  const Gemm& g = key.gemm;
  DDP_CHECK(g.m > 0 && g.n > 0 && g.k > 0, "an empty matrix product: m {}, n {}, k {}", g.m, g.n, g.k);
  const bool tf32 = g.in == DType::f32 && precision == Precision::tf32;
  Plan plan;
  DDP_CUBLAS(
      cublasLtMatmulDescCreate(plan.desc.out(), tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F));
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSA, g.transpose_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(plan.desc, CUBLASLT_MATMUL_DESC_TRANSB, g.transpose_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  if (key.bias) {
    set(plan.desc, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_BIAS);
    set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<std::int32_t>(type_of(g.out)));
  }
  plan.left = g.transpose_b ? transposed_layout(g.in, g.n, g.k) : transposed_layout(g.in, g.k, g.n);
  plan.right = g.transpose_a ? transposed_layout(g.in, g.k, g.m) : transposed_layout(g.in, g.m, g.k);
  plan.result = transposed_layout(g.out, g.m, g.n);
  plan.adds_bias = key.bias;
  const auto algorithm = choose_algorithm(key, plan);
  if (!algorithm) return std::nullopt;
  plan.algorithm = *algorithm;
  return plan;
}

/// The heuristic's first choice: timing the candidates would give different bits from run to run. Partial sums, where
/// the sum over k is split, stay in f32.
std::optional<cublasLtMatmulAlgo_t> MatmulPlans::Impl::choose_algorithm(const Key& key, const Plan& plan) const {
  PreferenceHandle preference;
  DDP_CUBLAS(cublasLtMatmulPreferenceCreate(preference.out()));
  set(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
  set(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
      static_cast<std::uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, key.align_b);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, key.align_a);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, key.align_c);
  set(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, key.align_c);
  cublasLtMatmulHeuristicResult_t result{};
  int found = 0;
  const cublasStatus_t status =
      cublasLtMatmulAlgoGetHeuristic(handle.get(), plan.desc.get(), plan.left.get(), plan.right.get(),
                                     plan.result.get(), plan.result.get(), preference.get(), 1, &result, &found);
  if (status == CUBLAS_STATUS_NOT_SUPPORTED || (status == CUBLAS_STATUS_SUCCESS && found == 0)) return std::nullopt;
  check(status, "cublasLtMatmulAlgoGetHeuristic", __FILE__, __LINE__);
  return result.algo;
}

/// Where cuBLASLt has no algorithm with bias, that without it.
const Plan& MatmulPlans::Impl::plan(const Key& key) {
  if (const auto found = plans.find(key); found != plans.end()) return found->second;
  std::optional<Plan> made = make_plan(key);
  if (!made && key.bias) {
    Key without = key;
    without.bias = false;
    made = make_plan(without);
  }
  DDP_CHECK(made, "cuBLASLt has no algorithm for a product of {} x {} x {} in {}", key.gemm.m, key.gemm.n, key.gemm.k,
            name_of(key.gemm.in));
  return plans.emplace(key, std::move(*made)).first->second;
}

MatmulPlans::MatmulPlans(Precision precision, cudaStream_t stream) : impl_(std::make_unique<Impl>()) {
  DDP_CHECK(!is_capturing(stream), "a matrix product must run once before one is captured in a graph");
  impl_->precision = precision;
  DDP_CUBLAS(cublasLtCreate(impl_->handle.out()));
  DDP_CUDA(cudaMalloc(impl_->workspace.out(), kWorkspaceBytes));
}

MatmulPlans::~MatmulPlans() = default;

void MatmulPlans::gemm(const Gemm& gemm, const void* a, const void* b, const void* bias, void* c, cudaStream_t stream) {
  DDP_CHECK(bias == nullptr || !gemm.accumulate, "a matrix product either accumulates or adds a bias");
  const Plan& plan = impl_->plan({gemm, bias != nullptr, alignment_of(a), alignment_of(b), alignment_of(c)});
  const bool bias_first = bias != nullptr && !plan.adds_bias;
  if (plan.adds_bias) set(plan.desc, CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
  if (bias_first) repeat_row(bias, gemm.m, gemm.n, gemm.out, c, stream);
  const float alpha = 1.0f;
  const float beta = gemm.accumulate || bias_first ? 1.0f : 0.0f;
  DDP_CUBLAS(cublasLtMatmul(impl_->handle.get(), plan.desc.get(), &alpha, b, plan.left.get(), a, plan.right.get(),
                            &beta, c, plan.result.get(), c, plan.result.get(), &plan.algorithm, impl_->workspace.get(),
                            kWorkspaceBytes, stream));
}

}  // namespace ddptrain::cuda
