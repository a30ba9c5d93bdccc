#include "runtime/core/files/safetensors.h"
#include "tests/fuzz/fuzz.h"

/// A safetensors file: all tensors lie within it, and what is written from them reads back the same.

namespace ddptrain::fuzz {
namespace {

void compare(const SafetensorsFile& a, const SafetensorsFile& b) {
  require(a.tensors().size() == b.tensors().size(), "the same number of tensors");
  for (const auto& [name, tensor] : a.tensors()) {
    const StoredTensor& other = b.tensor(name);
    require(tensor.type == other.type && tensor.shape == other.shape && tensor.bytes == other.bytes &&
                std::equal(tensor.data, tensor.data + tensor.bytes, other.data),
            "the same tensor");
  }
}

void read_values(const SafetensorsFile& file) {
  for (const auto& [name, tensor] : file.tensors()) {
    const auto values = result_of(file.name(), [&file, &name = name] { return file.read_f32(name); });
    require(!values || values->size() * size_of(tensor.type) == tensor.bytes, "as many values as the shape says");
  }
}

}  // namespace
}  // namespace ddptrain::fuzz

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace ddptrain::fuzz;
  using ddptrain::SafetensorsFile;
  static const Folder folder;
  const std::filesystem::path path = folder.write("input.safetensors", text_of(data, size));
  const auto file = result_of(path, [&] { return SafetensorsFile(path); });
  if (!file) return 0;
  read_values(*file);
  const std::filesystem::path written = folder.path() / "written.safetensors";
  ddptrain::write_safetensors(written, file->tensors());
  compare(*file, SafetensorsFile(written));
  return 0;
}
