#include "runtime/core/files/safetensors.h"

#include <cmath>
#include <cstring>

#include "runtime/core/files/atomic_file.h"
#include "tests/data/idx_files.h"

namespace ddptrain {
namespace {

using namespace ddptrain::tests;

Bytes file_bytes(const std::string& header, std::size_t data_bytes, std::int64_t more_length = 0) {
  const std::uint64_t length = header.size() + static_cast<std::uint64_t>(more_length);
  Bytes bytes(8 + header.size() + data_bytes);
  std::memcpy(bytes.data(), &length, 8);
  std::memcpy(bytes.data() + 8, header.data(), header.size());
  return bytes;
}

std::string entry(const std::string& name, const std::string& type, const std::string& shape,
                  const std::string& range) {
  return "\"" + name + "\":{\"dtype\":\"" + type + "\",\"shape\":[" + shape + "],\"data_offsets\":[" + range + "]}";
}

class SafetensorsTest : public ::testing::Test {
 protected:
  std::string fault(const Bytes& content) {
    write_plain(path_, content);
    const std::string message = error_message([&] { SafetensorsFile file(path_); });
    EXPECT_CONTAINS(message, path_.string());
    EXPECT_LT(message.size(), 600u);
    return message;
  }
  std::string fault(const std::string& header, std::size_t data_bytes) { return fault(file_bytes(header, data_bytes)); }

  void write_sample() {
    const std::vector<float> a = {1.5f, -2.0f, 0.0f, 3.25f, 1e-30f, -0.0f};
    const std::vector<std::uint16_t> half = {0x3C00, 0xC000, 0x0001, 0x7BFF, 0x7C00};
    const std::vector<std::uint8_t> bytes = {1, 2, 3};
    write_safetensors(path_,
                      {{"b.bytes", {StoredType::u8, {3}, bytes.data()}},
                       {"z.float", {StoredType::f32, {2, 3}, reinterpret_cast<const std::uint8_t*>(a.data())}},
                       {"half", {StoredType::f16, {5}, reinterpret_cast<const std::uint8_t*>(half.data())}},
                       {"brain", {StoredType::bf16, {1}, reinterpret_cast<const std::uint8_t*>(half.data())}},
                       {"empty", {StoredType::f32, {0, 7}, nullptr}}},
                      {{"format", "pt"}});
  }

  TempFolder folder_;
  std::filesystem::path path_ = folder_ / "model.safetensors";
};

TEST_F(SafetensorsTest, WhatIsWrittenIsRead) {
  write_sample();
  const SafetensorsFile file(path_);
  EXPECT_EQ(file.tensors().size(), 5u);
  EXPECT_EQ(file.tensor("z.float").shape, (Shape{2, 3}));
  EXPECT_EQ(file.read_f32("z.float"), (std::vector<float>{1.5f, -2.0f, 0.0f, 3.25f, 1e-30f, -0.0f}));
  EXPECT_EQ(file.read_f32("half"), (std::vector<float>{1, -2, std::ldexp(1.0f, -24), 65504, INFINITY}));
  EXPECT_EQ(file.read_f32("brain"), (std::vector<float>{0.0078125f}));  // 0x3C00: 2^-7
  EXPECT_EQ(file.read_f32("empty"), std::vector<float>());
  EXPECT_EQ(file.tensor("empty").shape, (Shape{0, 7}));
  const StoredTensor& bytes = file.tensor("b.bytes");
  EXPECT_EQ(Bytes(bytes.data, bytes.data + bytes.bytes), (Bytes{1, 2, 3}));
  EXPECT_CONTAINS(error_message([&] { file.read_f32("b.bytes"); }), "'b.bytes' is U8");
  EXPECT_CONTAINS(error_message([&] { file.tensor("x"); }), "no tensor 'x'");
}

TEST_F(SafetensorsTest, TheBytesAreThoseOfTheFormat) {
  const std::vector<double> values = {1.0};
  const std::vector<std::uint8_t> byte = {7};
  const std::map<std::string, StoredTensor> tensors = {
      {"a", {StoredType::u8, {1}, byte.data()}},
      {"b", {StoredType::f64, {1, 1}, reinterpret_cast<const std::uint8_t*>(values.data())}}};
  write_safetensors(path_, tensors);
  std::string header = "{" + entry("b", "F64", "1,1", "0,8") + "," + entry("a", "U8", "1", "8,9") + "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  Bytes expected = file_bytes(header, 9);
  std::memcpy(expected.data() + expected.size() - 9, values.data(), 8);
  expected.back() = 7;
  EXPECT_EQ(read_all(path_), expected);
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
}

TEST_F(SafetensorsTest, UnalignedTensorsAreRead) {
  write_plain(path_, file_bytes("{" + entry("a", "U8", "1", "0,1") + "," + entry("b", "F64", "1", "1,9") + "}", 9));
  EXPECT_EQ(SafetensorsFile(path_).read_f32("b"), std::vector<float>{0.0f});
}

TEST_F(SafetensorsTest, EveryTruncationIsReported) {
  write_sample();
  const Bytes content = read_all(path_);
  for (std::size_t size = 0; size < content.size(); ++size) {
    fault(Bytes(content.begin(), content.begin() + static_cast<std::ptrdiff_t>(size)));
  }
  Bytes longer = content;
  longer.push_back(0);
  EXPECT_CONTAINS(fault(longer), "last 1 bytes belong to no tensor");
}

TEST_F(SafetensorsTest, FaultsOfTheHeaderAreTold) {
  const std::string good = entry("a", "F32", "2", "0,8");
  EXPECT_CONTAINS(error_message([&] { SafetensorsFile file(folder_ / "none"); }), "cannot be opened");
  EXPECT_CONTAINS(error_message([&] { SafetensorsFile file(folder_.path()); }), "is a folder");
  EXPECT_CONTAINS(fault(file_bytes("{" + good + "}", 8, 1000)), "truncated");
  EXPECT_CONTAINS(fault(file_bytes("{" + good + "}", 8, INT64_MAX)), "truncated");
  EXPECT_CONTAINS(fault(file_bytes("{" + good + "}", 8, -100)), "truncated");  // nearly 2^64
  EXPECT_CONTAINS(fault("[1]", 0), "not a JSON object");
  EXPECT_CONTAINS(fault("{" + good, 8), "damaged JSON");
  EXPECT_CONTAINS(fault("{\"\xFF\":1}", 8), "damaged JSON");
  EXPECT_CONTAINS(fault("{\"a\":" + std::string(3'000'000, '['), 8), "nested");
  EXPECT_CONTAINS(fault("{\"a\":" + std::string(3000, '[') + std::string(3000, ']') + "}", 8), "nested");
  EXPECT_CONTAINS(fault("{\"a\":1}", 8), "no object");
  EXPECT_CONTAINS(fault("{\"a\":{}}", 8), "'dtype' not found");
  EXPECT_CONTAINS(fault("{" + entry("a", "F33", "2", "0,8") + "}", 8), "unknown dtype \"F33\"");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "3", "0,8") + "}", 8), "8 bytes of data, but its shape takes 12");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "-2", "0,8") + "}", 8), "shape has -2");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "2.0", "0,8") + "}", 8), "shape has 2.0");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "\"2\"", "0,8") + "}", 8), "shape has");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "4611686018427387906", "0,8") + "}", 8), "overflows");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "18446744073709551615", "0,8") + "}", 8), "63 bits");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "2", "0,16") + "}", 8), "not within the 8 bytes");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "2", "8,0") + "}", 8), "not within");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "2", "-8,0") + "}", 8), "data_offsets has -8");
  EXPECT_CONTAINS(fault("{" + entry("a", "F32", "2", "0,8,9") + "}", 8), "not two numbers");
  EXPECT_CONTAINS(fault("{" + good + "," + entry("b", "F32", "2", "0,8") + "}", 8), "'b' overlaps another");
  EXPECT_CONTAINS(fault("{" + good + "," + entry("b", "F32", "1", "4,8") + "}", 8), "overlaps");
  EXPECT_CONTAINS(fault("{" + good + "," + entry("b", "F32", "1", "12,16") + "}", 16), "belong to none");
  EXPECT_CONTAINS(fault("{\"\\u001b[2J\":1}", 8), "tensor '?[2J': no object");
  EXPECT_CONTAINS(fault("{\"" + std::string(5000, 'x') + "\":1}", 8), "xxx...': no object");
  EXPECT_CONTAINS(fault("{\"a\":\x7f}", 8), "last read: '\"a\":?'");
}

TEST_F(SafetensorsTest, AWriterThatFailsLeavesWhatWasThere) {
  write_sample();
  const Bytes before = read_all(path_);
  {
    AtomicFile file(path_);
    file.write("half of it");
    EXPECT_EQ(read_all(path_), before);
  }
  EXPECT_EQ(read_all(path_), before);
  EXPECT_FALSE(std::filesystem::exists(path_.string() + ".partial"));
  EXPECT_CONTAINS(error_message([&] { AtomicFile file(folder_ / "none/file"); }), "cannot be created");
}

}  // namespace
}  // namespace ddptrain
