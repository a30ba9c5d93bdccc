#include "runtime/device/peak_rate.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <string_view>

namespace ddptrain {

namespace {

/// Rates in TFLOP/s without sparsity. 0: the GPU does not have the format. NVIDIA's data sheets give most rates with
/// sparsity, which is twice these. They give rates of HGX and NVL72 for all GPUs together. GeForce: with f32 sums.
struct Product {
  std::string_view in_name;  ///< Part of the driver's name. The first product that fits counts.
  std::string_view product;
  double fp32;
  double tf32;
  double bf16;
  double fp8;
  std::string_view source;
};

constexpr std::array kProducts = {
    Product{"B300", "B300", 75, 1125, 2250, 4500, "HGX B300 data sheet / 8"},
    Product{"GB200", "GB200", 80, 1250, 2500, 5000, "GB200 NVL72 data sheet / 72"},
    Product{"B200", "B200", 75, 1125, 2250, 4500, "HGX B200 data sheet / 8"},
    Product{"GH200", "GH200", 67, 494.5, 989.5, 1979, "GH200 data sheet"},
    Product{"H200 NVL", "H200 NVL", 60, 417.5, 835.5, 1670.5, "H200 data sheet"},
    Product{"H200", "H200 SXM", 67, 494.5, 989.5, 1979, "H200 data sheet"},
    Product{"H100 NVL", "H100 NVL", 60, 417.5, 835.5, 1670.5, "H100 data sheet"},
    Product{"H100 PCIe", "H100 PCIe", 51, 378, 756, 1513, "H100 data sheet"},
    Product{"H100 80GB HBM3", "H100 SXM", 67, 494.5, 989.5, 1979, "H100 data sheet"},
    Product{"A100-SXM-64GB", "", 0, 0, 0, 0, ""},                   // custom product with more multiprocessors
    Product{"A100", "A100", 19.5, 156, 312, 0, "A100 data sheet"},  // SXM and PCIe alike
    Product{"A40", "A40", 37.4, 74.8, 149.7, 0, "A40 data sheet"},
    Product{"A30", "A30", 10.3, 82, 165, 0, "A30 data sheet"},
    Product{"A10", "A10", 31.2, 62.5, 125, 0, "A10 data sheet"},
    Product{"L40S", "L40S", 91.6, 183, 362, 733, "L40S data sheet"},
    Product{"L40", "L40", 90.5, 90.5, 181, 362, "L40 data sheet"},
    Product{"L4", "L4", 30.3, 60, 121, 242.5, "L4 data sheet"},
    Product{"RTX 5090 D", "", 0, 0, 0, 0, ""},  // another product, with unknown rates
    Product{"RTX 5090", "RTX 5090", 104.8, 104.8, 209.5, 419, "RTX Blackwell white paper"},
    Product{"RTX 4090 D", "", 0, 0, 0, 0, ""},  // another product, with unknown rates
    Product{"RTX 4090", "RTX 4090", 82.6, 82.6, 165.2, 330.3, "Ada white paper"},
    Product{"RTX 3090 Ti", "RTX 3090 Ti", 40, 40, 80, 0, "Ampere GA102 white paper"},
    Product{"RTX 3090", "RTX 3090", 35.6, 35.6, 71, 0, "Ampere GA102 white paper"},
    Product{"V100S", "V100S", 16.4, 0, 0, 0, "V100 data sheet"},
    Product{"V100-SXM2", "V100 SXM", 15.7, 0, 0, 0, "V100 data sheet"},
    Product{"V100-PCIE", "V100 PCIe", 14, 0, 0, 0, "V100 data sheet"},
    Product{"T4", "T4", 8.1, 0, 0, 0, "T4 data sheet"},
};

/// Whether `name` contains `part` as whole words: "A100" and "A10G" do not contain "A10".
bool has_words(std::string_view name, std::string_view part) {
  const auto is_letter = [&](std::size_t at) {
    return at < name.size() && std::isalnum(static_cast<unsigned char>(name[at])) != 0;
  };
  for (std::size_t at = name.find(part); at != std::string_view::npos; at = name.find(part, at + 1)) {
    if ((at == 0 || !is_letter(at - 1)) && !is_letter(at + part.size())) return true;
  }
  return false;
}

double rate_of(const Product& product, Precision precision, bool fp8) {
  if (fp8) return product.fp8;
  if (precision == Precision::bf16) return product.bf16;
  return precision == Precision::tf32 ? product.tf32 : product.fp32;
}

}  // namespace

PeakRate data_sheet_peak(const std::string& name, Precision precision, bool fp8) {
  if (has_words(name, "Laptop") || has_words(name, "MIG")) return {};
  for (const Product& product : kProducts) {
    if (!has_words(name, product.in_name)) continue;
    const double rate = rate_of(product, precision, fp8);
    if (rate == 0.0) return {};
    return {1e12 * rate, fmt::format("{}, {}, {}", product.product, fp8 ? "fp8" : name_of(precision), product.source)};
  }
  return {};
}

}  // namespace ddptrain
