#include "runtime/core/files/safetensors.h"

#include <Eigen/Core>
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <string_view>
#include <tuple>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/file_kind.h"
#include "runtime/core/files/json.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

using nlohmann::json;

static_assert(std::endian::native == std::endian::little, "tensors are mapped as they are");

struct TypeInfo {
  const char* name;
  std::size_t size;
};
/// By StoredType.
constexpr std::array<TypeInfo, 13> kTypes = {{{"F64", 8},
                                              {"F32", 4},
                                              {"F16", 2},
                                              {"BF16", 2},
                                              {"I64", 8},
                                              {"I32", 4},
                                              {"I16", 2},
                                              {"I8", 1},
                                              {"U64", 8},
                                              {"U32", 4},
                                              {"U16", 2},
                                              {"U8", 1},
                                              {"BOOL", 1}}};

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kLongestHeader = 100'000'000;  // as in the reference implementation
constexpr const char* kMetadata = "__metadata__";

/// The header's text.
std::string_view header_of(const MappedFile& file, const std::string& name) {
  const std::string kind = looks_like(file.text());
  if (file.size() < kLengthBytes) {
    usage_error("{}: {} bytes are too few for a safetensors file{}", name, file.size(), kind);
  }
  std::uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  if (length > file.size() - kLengthBytes || length > kLongestHeader) {
    if (!kind.empty() && file.data()[kLengthBytes] != '{') usage_error("{}: not a safetensors file{}", name, kind);
    usage_error("{}: not a safetensors file, or truncated: a header of {} bytes in a file of {}", name, length,
                file.size());
  }
  return {reinterpret_cast<const char*>(file.data()) + kLengthBytes, static_cast<std::size_t>(length)};
}

std::string dump(const json& value) { return printable(value.dump(-1, ' ', true, json::error_handler_t::replace), 40); }

StoredType type_in(const json& entry) {
  const json& text = entry.at("dtype");
  const auto found =
      std::find_if(kTypes.begin(), kTypes.end(), [&](const TypeInfo& type) { return text == type.name; });
  if (found == kTypes.end()) usage_error("unknown dtype {}", dump(text));
  return static_cast<StoredType>(found - kTypes.begin());
}

std::vector<std::uint64_t> counts_in(const json& entry, const char* key) {
  const json& list = entry.at(key);
  if (!list.is_array()) usage_error("{} is not a list", key);
  for (const json& number : list) {
    if (!number.is_number_unsigned()) usage_error("{} has {}, not a count", key, dump(number));
  }
  return list.get<std::vector<std::uint64_t>>();
}

/// A tensor of the header, against the rules.
StoredTensor tensor_in(const json& entry, const std::uint8_t* data, std::uint64_t data_bytes) {
  if (!entry.is_object()) usage_error("no object with dtype, shape and data_offsets");
  StoredTensor tensor{type_in(entry), {}};
  std::uint64_t expected = size_of(tensor.type);
  for (const std::uint64_t size : counts_in(entry, "shape")) {
    if (size > std::numeric_limits<std::int64_t>::max()) usage_error("its shape does not fit 63 bits");
    if (__builtin_mul_overflow(expected, size, &expected)) usage_error("its shape overflows");
    tensor.shape.push_back(static_cast<std::int64_t>(size));
  }
  const std::vector<std::uint64_t> range = counts_in(entry, "data_offsets");
  if (range.size() != 2) usage_error("data_offsets are not two numbers");
  if (range[0] > range[1] || range[1] > data_bytes) {
    usage_error("data_offsets {} to {} are not within the {} bytes of data", range[0], range[1], data_bytes);
  }
  tensor.data = data + range[0];
  tensor.bytes = static_cast<std::size_t>(range[1] - range[0]);
  if (expected != tensor.bytes) usage_error("{} bytes of data, but its shape takes {}", tensor.bytes, expected);
  return tensor;
}

/// Every byte of the data belongs to one tensor.
void check_layout(const std::map<std::string, StoredTensor>& tensors, const std::uint8_t* data, std::size_t bytes,
                  const std::string& file) {
  std::vector<std::tuple<const std::uint8_t*, std::size_t, std::string_view>> places;
  for (const auto& [name, tensor] : tensors) places.emplace_back(tensor.data, tensor.bytes, name);
  std::sort(places.begin(), places.end());
  const std::uint8_t* next = data;
  for (const auto& [begin, size, name] : places) {
    if (begin != next) {
      usage_error("{}: damaged safetensors header: tensor '{}' {}", file, printable(name),
                  begin < next ? "overlaps another" : "comes after bytes that belong to none");
    }
    next += size;
  }
  const std::ptrdiff_t rest = data + bytes - next;
  if (rest != 0) usage_error("{}: damaged: its last {} bytes belong to no tensor", file, rest);
}

template <class From>
std::vector<float> to_f32(const StoredTensor& tensor) {
  std::vector<float> values(tensor.bytes / sizeof(From));
  for (std::size_t i = 0; i < values.size(); ++i) {
    From value;
    std::memcpy(&value, tensor.data + i * sizeof(From), sizeof(From));
    values[i] = static_cast<float>(value);
  }
  return values;
}

std::size_t bytes_of(const StoredTensor& tensor) {
  return static_cast<std::size_t>(element_count(tensor.shape)) * size_of(tensor.type);
}

}  // namespace

std::size_t size_of(StoredType type) { return kTypes.at(static_cast<std::size_t>(type)).size; }
const char* name_of(StoredType type) { return kTypes.at(static_cast<std::size_t>(type)).name; }

SafetensorsFile::SafetensorsFile(const std::filesystem::path& path) : name_(path.string()), file_(path) {
  const std::string_view text = header_of(file_, name_);
  const json header = parse_json_object(text, name_);
  const std::uint8_t* data = file_.data() + kLengthBytes + text.size();
  const std::size_t data_bytes = file_.size() - kLengthBytes - text.size();
  for (const auto& [key, value] : header.items()) {
    if (key == kMetadata) continue;
    try {
      tensors_.emplace(key, tensor_in(value, data, data_bytes));
    } catch (const std::exception& error) {  // of JSON, too
      usage_error("{}: damaged safetensors header: tensor '{}': {}", name_, printable(key),
                  printable(error.what(), 200));
    }
  }
  check_layout(tensors_, data, data_bytes, name_);
}

const StoredTensor& SafetensorsFile::tensor(const std::string& tensor) const {
  const auto found = tensors_.find(tensor);
  if (found == tensors_.end()) usage_error("{}: has no tensor '{}'", name_, printable(tensor));
  return found->second;
}

std::vector<float> SafetensorsFile::read_f32(const std::string& tensor) const {
  const StoredTensor& stored = this->tensor(tensor);
  switch (stored.type) {
    case StoredType::f64:
      return to_f32<double>(stored);
    case StoredType::f32:
      return to_f32<float>(stored);
    case StoredType::f16:
      return to_f32<Eigen::half>(stored);
    case StoredType::bf16:
      return to_f32<Eigen::bfloat16>(stored);
    default:
      usage_error("{}: tensor '{}' is {}, not of floating-point numbers", name_, printable(tensor),
                  name_of(stored.type));
  }
}

std::string safetensors_head(const std::vector<NamedTensor>& tensors,
                             const std::map<std::string, std::string>& metadata) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header[kMetadata] = metadata;
  std::size_t next = 0;
  for (const auto& [name, tensor] : tensors) {
    const std::size_t end = next + bytes_of(tensor);
    header[name]["dtype"] = name_of(tensor.type);
    header[name]["shape"] = tensor.shape;
    header[name]["data_offsets"] = {next, end};
    next = end;
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  return std::string(reinterpret_cast<const char*>(&length), kLengthBytes) + text;
}

void sort_for_safetensors(std::vector<NamedTensor>& tensors) {
  std::sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    return std::tuple(size_of(b.second.type), a.first) < std::tuple(size_of(a.second.type), b.first);
  });
}

void write_safetensors(const std::filesystem::path& path, const std::map<std::string, StoredTensor>& tensors,
                       const std::map<std::string, std::string>& metadata) {
  std::vector<NamedTensor> order(tensors.begin(), tensors.end());
  sort_for_safetensors(order);
  AtomicFile file(path);
  file.write(safetensors_head(order, metadata));
  for (const auto& [name, tensor] : order) file.write(tensor.data, bytes_of(tensor));
  file.commit();
}

}  // namespace ddptrain
