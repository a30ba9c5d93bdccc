#include "runtime/train/report/tensorboard_file.h"

#include <unistd.h>

#include <array>
#include <bit>
#include <chrono>
#include <cstddef>
#include <string_view>

#include "runtime/core/error.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/process/host.h"

namespace ddptrain {
namespace {

constexpr std::array<std::uint32_t, 256> crc32c_table() {
  std::array<std::uint32_t, 256> table{};
  for (std::uint32_t i = 0; i < table.size(); ++i) {
    std::uint32_t value = i;
    for (int bit = 0; bit < 8; ++bit) value = (value >> 1) ^ ((value & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = value;
  }
  return table;
}

std::uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc32c_table();
  std::uint32_t crc = ~0u;
  for (const char byte : bytes) crc = kTable[(crc ^ static_cast<unsigned char>(byte)) & 0xFF] ^ (crc >> 8);
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

template <class Unsigned>
std::string little_endian(Unsigned value) {
  std::string bytes;
  for (std::size_t i = 0; i < sizeof(value); ++i) bytes += static_cast<char>(value >> (8 * i) & 0xFF);
  return bytes;
}

// --- protobuf: a field is its number and kind, and its value ---------------------------------------------------------

std::string varint(std::uint64_t value) {
  std::string bytes;
  for (; value >= 0x80; value >>= 7) bytes += static_cast<char>(value | 0x80);
  return bytes + static_cast<char>(value);
}

std::string field(unsigned number, std::uint64_t value) { return varint(number << 3) + varint(value); }
std::string field(unsigned number, double value) {
  return varint(number << 3 | 1) + little_endian(std::bit_cast<std::uint64_t>(value));
}
std::string field(unsigned number, float value) {
  return varint(number << 3 | 5) + little_endian(std::bit_cast<std::uint32_t>(value));
}
std::string field(unsigned number, std::string_view bytes) {
  return varint(number << 3 | 2) + varint(bytes.size()) + std::string(bytes);
}

// --- the messages of tensorflow/core/util/event.proto and framework/{summary,tensor}.proto ---------------------------

std::string summary_event(const std::string& value) { return field(5, field(1, value)); }  // Event.summary.value

std::string text_value(const std::string& tag, const std::string& markdown) {
  constexpr std::uint64_t kTensorData = 2;  // DataClass.DATA_CLASS_TENSOR
  constexpr std::uint64_t kString = 7;      // DataType.DT_STRING
  const std::string one = field(2, field(1, std::uint64_t{1}));
  const std::string metadata = field(1, field(1, std::string_view("text"))) + field(4, kTensorData);
  const std::string tensor = field(1, kString) + field(2, one) + field(8, std::string_view(markdown));
  return field(1, std::string_view(tag)) + field(9, metadata) + field(8, tensor);
}

double unix_time() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

TensorBoardFile::TensorBoardFile(const std::string& folder, std::int64_t step) {
  require_writable_folder("--tensorboard", folder);
  path_ = fmt::format("{}/events.out.tfevents.{:.6f}.{}.{}", folder, unix_time(), system_host_name(), getpid());
  file_.open(path_, std::ios::binary);
  constexpr std::uint64_t kStart = 1;  // SessionLog.START
  write(step, field(3, std::string_view("brain.Event:2")));
  write(step, field(7, field(1, kStart)));
}

void TensorBoardFile::scalar(const std::string& tag, std::int64_t step, double value) {
  write(step, summary_event(field(1, std::string_view(tag)) + field(2, static_cast<float>(value))));
}

void TensorBoardFile::text(const std::string& tag, std::int64_t step, const std::string& markdown) {
  write(step, summary_event(text_value(tag, markdown)));
}

void TensorBoardFile::write(std::int64_t step, const std::string& fields) {
  const std::string event = field(1, unix_time()) + field(2, static_cast<std::uint64_t>(step)) + fields;
  const std::string length = little_endian(static_cast<std::uint64_t>(event.size()));
  file_ << length << little_endian(masked_crc32c(length)) << event << little_endian(masked_crc32c(event)) << std::flush;
  if (!file_) fail("writing to the event file {} failed", path_);
}

}  // namespace ddptrain
