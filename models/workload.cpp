#include "models/workload.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/safetensors.h"

namespace ddptrain {

std::vector<float> transposed(const std::vector<float>& values, std::int64_t outer, std::int64_t rows,
                              std::int64_t columns) {
  DDP_CHECK(static_cast<std::int64_t>(values.size()) == outer * rows * columns, "{} values of [{}, {}, {}]",
            values.size(), outer, rows, columns);
  constexpr std::int64_t kTile = 32;
  std::vector<float> result(values.size());
  for (std::int64_t first = 0; first < outer * rows * columns; first += rows * columns) {
    const float* from = values.data() + first;
    float* to = result.data() + first;
    for (std::int64_t left = 0; left < columns; left += kTile) {
      for (std::int64_t r = 0; r < rows; ++r) {
        for (std::int64_t c = left; c < std::min(left + kTile, columns); ++c) to[c * rows + r] = from[r * columns + c];
      }
    }
  }
  return result;
}

std::vector<std::uint32_t> Workload::end_tokens() const {
  SpecialTokens tokens = special_tokens();
  return std::move(tokens[kEndToken]);
}

void write_weights(const std::filesystem::path& folder, const std::map<std::string, HostTensor>& tensors) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) usage_error("{}: the folder cannot be made: {}", folder.string(), error.message());
  std::map<std::string, StoredTensor> stored;
  for (const auto& [name, tensor] : tensors) {
    stored[name] = {StoredType::f32, tensor.shape, reinterpret_cast<const std::uint8_t*>(tensor.values.data())};
  }
  write_safetensors(folder / "model.safetensors", stored, {{"format", "pt"}, {"producer", "ddptrain"}});
}

OutputFile saved_weights(const std::string& flag, const std::filesystem::path& folder) {
  OutputFile file = {flag, folder / "model.safetensors", {R"({"__metadata__":{"format":"pt","producer":"ddptrain"})"}};
  file.begins_at = sizeof(std::uint64_t);  // behind the length of the header
  file.may_replace_input = true;
  return file;
}

}  // namespace ddptrain
