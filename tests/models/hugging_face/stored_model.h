#pragma once

#include <map>
#include <string>
#include <vector>

#include "models/workload.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/safetensors.h"
#include "tests/data/idx_files.h"

/// Models on disk that tests change.

namespace ddptrain::tests {

/// The content of a safetensors file that can be changed and written again.
struct Content {
  explicit Content(const std::filesystem::path& path) {
    const SafetensorsFile file(path);
    for (const auto& [name, tensor] : file.tensors()) {
      tensors[name] = tensor;
      bytes[name] = Bytes(tensor.data, tensor.data + tensor.bytes);
    }
  }

  void write(const std::filesystem::path& path) {
    for (auto& [name, tensor] : tensors) tensor.data = bytes.at(name).data();
    write_safetensors(path, tensors);
  }

  void add(const std::string& name, StoredType type, const Shape& shape) {
    bytes[name] = Bytes(static_cast<std::size_t>(element_count(shape)) * size_of(type));
    tensors[name] = {type, shape, nullptr};
  }

  void rename(const std::string& from, const std::string& to) {
    tensors[to] = tensors.at(from);
    bytes[to] = bytes.at(from);
    remove(from);
  }

  void remove(const std::string& name) {
    tensors.erase(name);
    bytes.erase(name);
  }

  std::map<std::string, StoredTensor> tensors;
  std::map<std::string, Bytes> bytes;
};

/// All values of parameters: 0.25, 0.5, 0.75 ...
inline std::map<std::string, HostTensor> numbered_tensors(const std::vector<ParameterSpec>& specs) {
  std::map<std::string, HostTensor> tensors;
  float next = 0.0f;
  for (const ParameterSpec& spec : specs) {
    HostTensor& tensor = tensors[spec.name];
    tensor.shape = spec.shape;
    for (std::int64_t i = 0; i < spec.size(); ++i) tensor.values.push_back(next += 0.25f);
  }
  return tensors;
}

inline nlohmann::json read_json(const std::filesystem::path& path) {
  const Bytes bytes = read_all(path);
  return nlohmann::json::parse(bytes.begin(), bytes.end());
}
inline void write_text(const std::filesystem::path& path, const std::string& text) {
  write_plain(path, Bytes(text.begin(), text.end()));
}

}  // namespace ddptrain::tests
