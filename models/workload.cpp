#include "models/workload.h"

#include <system_error>

#include "runtime/core/error.h"
#include "runtime/core/files/safetensors.h"

namespace ddptrain {

void Workload::export_weights(const std::filesystem::path& folder, const std::map<std::string, std::int64_t>&,
                              const std::map<std::string, HostTensor>& weights) const {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) usage_error("{}: the folder cannot be made: {}", folder.string(), error.message());
  std::map<std::string, StoredTensor> stored;
  for (const auto& [name, tensor] : weights) {
    stored[name] = {StoredType::f32, tensor.shape, reinterpret_cast<const std::uint8_t*>(tensor.values.data())};
  }
  write_safetensors(folder / "model.safetensors", stored, {{"format", "pt"}});
}

}  // namespace ddptrain
