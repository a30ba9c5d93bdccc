#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "runtime/core/files/mapped_file.h"
#include "runtime/core/tensor.h"

/// safetensors files, as github.com/huggingface/safetensors defines them: the header's length (64 bits), the header
/// (JSON with type, shape and place of every tensor), the tensors, row-major; all little-endian.

namespace ddptrain {

enum class StoredType : std::uint8_t { f64, f32, f16, bf16, i64, i32, i16, i8, u64, u32, u16, u8, boolean };

std::size_t size_of(StoredType type);
const char* name_of(StoredType type);  ///< As the files write it: "F32", ...

/// A tensor in a file. A view; `data` need not be aligned for its type.
struct StoredTensor {
  StoredType type = StoredType::f32;
  Shape shape;
  const std::uint8_t* data = nullptr;
  std::size_t bytes = 0;
};

/// A file, mapped: tensors are read when they are touched.
class SafetensorsFile {
 public:
  /// UsageError, naming the file, if it cannot be read or does not keep to the format: lengths beyond the file,
  /// damaged JSON, unknown types, sizes that do not match shapes, tensors that overlap or leave holes.
  explicit SafetensorsFile(const std::filesystem::path& path);

  const std::string& name() const { return name_; }
  const std::map<std::string, StoredTensor>& tensors() const { return tensors_; }

  /// UsageError if there is no such tensor.
  const StoredTensor& tensor(const std::string& tensor) const;
  /// The values of a tensor of floating-point numbers (UsageError for other types), rounded if it is f64.
  std::vector<float> read_f32(const std::string& tensor) const;

 private:
  std::string name_;
  MappedFile file_;
  std::map<std::string, StoredTensor> tensors_;
};

using NamedTensor = std::pair<std::string, StoredTensor>;

/// The start of a file: the header's length and the header, whose bytes are a multiple of 8. The data of `tensors`
/// follow in this order; their `data` and `bytes` may be left out.
std::string safetensors_head(const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata = {});
/// Wide types first, then by name: the same content gives the same bytes, and all tensors are aligned.
void sort_for_safetensors(std::vector<NamedTensor>& tensors);

/// Writes a file through AtomicFile, sorted. `bytes` of the tensors may be left 0. UsageError if the file cannot be
/// created.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, StoredTensor>& tensors,
                       const std::map<std::string, std::string>& metadata = {});

}  // namespace ddptrain
