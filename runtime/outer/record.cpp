#include "runtime/outer/record.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/files/mapped_file.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

using nlohmann::json;

using RecordChecksum = std::array<std::uint64_t, 2>;

constexpr const char* kRecordFormat = "2\n";
constexpr std::size_t kLongestHead = std::size_t{64} << 20;
constexpr std::int64_t kMostValues = std::int64_t{1} << 40;

std::string_view bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
}

std::string json_of(const OuterRecordHead& head) {
  json parameters = json::array();
  for (const OuterParameter& parameter : head.parameters) parameters.push_back({parameter.name, parameter.shape});
  return json{{"groups", head.rule.groups},
              {"nesterov", head.rule.optimizer == OuterOptimizer::nesterov},
              {"learning_rate", head.rule.learning_rate},
              {"momentum", head.rule.momentum},
              {"most_age", head.rule.most_age},
              {"run", head.layout.run},
              {"size", head.layout.size},
              {"fragments", head.layout.fragments},
              {"codec", static_cast<int>(head.layout.codec)},
              {"parameters", parameters},
              {"fold", head.fold}}
      .dump();
}

std::int64_t count_in(const json& from, const char* name, std::int64_t least, std::int64_t most) {
  const json& value = from.at(name);
  if (!value.is_number_integer() || value < least || value > most) usage_error("damaged: {}", name);
  return value.get<std::int64_t>();
}

OuterRecordHead head_in(const json& from) {
  OuterRecordHead head;
  head.rule.groups = count_in(from, "groups", 0, OuterFold::kMostGroups);
  head.rule.optimizer = from.at("nesterov").get<bool>() ? OuterOptimizer::nesterov : OuterOptimizer::sgd;
  head.rule.learning_rate = from.at("learning_rate").get<float>();
  head.rule.momentum = from.at("momentum").get<float>();
  head.rule.most_age = count_in(from, "most_age", 0, kMostValues);
  head.layout.run = from.at("run").get<std::uint64_t>();
  head.layout.size = count_in(from, "size", 1, kMostValues);
  head.layout.fragments = count_in(from, "fragments", 1, 65536);
  head.layout.codec = static_cast<OuterCodec>(count_in(from, "codec", 0, 3));
  from.at("fold").get_to(head.fold);
  std::int64_t size = 0;
  for (const json& parameter : from.at("parameters")) {
    OuterParameter& added =
        head.parameters.emplace_back(OuterParameter{parameter.at(0).get<std::string>(), parameter.at(1).get<Shape>()});
    std::int64_t count = 1;
    for (const std::int64_t extent : added.shape) {
      if (extent < 1 || extent > kMostValues / count) usage_error("damaged: a shape");
      count *= extent;
    }
    size += count;
    if (size > head.layout.size) break;
  }
  if (size != head.layout.size) usage_error("damaged: the shapes do not fit the size");
  return head;
}

/// Takes `bytes` from the start of `text`. UsageError if it is shorter.
std::string_view take(std::string_view& text, std::size_t bytes) {
  if (text.size() < bytes) usage_error("cut off");
  const std::string_view taken = text.substr(0, bytes);
  text.remove_prefix(bytes);
  return taken;
}

std::vector<float> take_floats(std::string_view& text, std::int64_t count) {
  const std::string_view bytes = take(text, static_cast<std::size_t>(count) * sizeof(float));
  std::vector<float> values(static_cast<std::size_t>(count));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The next entry; empty at the end of the file, or if the rest is a part of an entry.
std::string_view take_entry(std::string_view& text) {
  std::uint64_t bytes = 0;
  if (text.size() < sizeof(bytes)) return {};
  std::memcpy(&bytes, text.data(), sizeof(bytes));
  const std::string_view rest = text.substr(sizeof(bytes));
  if (length_of_entry(rest).value_or(bytes) != bytes) usage_error("damaged: the length of an entry");
  if (bytes > rest.size()) return {};
  take(text, sizeof(bytes));
  return take(text, bytes);
}

OuterReplay replay(const std::string_view whole) {
  std::string_view text = whole;
  if (!text.starts_with(kOuterRecordStart)) usage_error("it is no file of --outer-record");
  take(text, std::strlen(kOuterRecordStart));
  if (!text.starts_with(kRecordFormat)) usage_error("another version of ddptrain wrote it, or it is damaged");
  take(text, std::strlen(kRecordFormat));
  const std::size_t end = text.substr(0, kLongestHead).find('\n');
  if (end == text.npos) usage_error("cut off");
  const OuterRecordHead head = head_in(parse_json_object(text.substr(0, end), "its head"));
  text.remove_prefix(end + 1);
  std::vector<float> weights = take_floats(text, head.layout.size);
  std::vector<float> velocity;
  if (head.rule.optimizer == OuterOptimizer::nesterov) velocity = take_floats(text, head.layout.size);
  const std::size_t before = whole.size() - text.size();
  RecordChecksum checksum;
  std::memcpy(checksum.data(), take(text, sizeof(checksum)).data(), sizeof(checksum));
  Hash128 hash;
  hash.add(whole.data(), before);
  if (checksum != hash.value()) {
    usage_error("damaged: the checksum of its head and of the initial weights is wrong");
  }
  OuterFold fold(head.rule, head.layout, weights, velocity);
  fold.restore(head.fold);
  OuterReplay result;
  for (std::string_view bytes = take_entry(text); !bytes.empty(); bytes = take_entry(text)) {
    const auto parsed = parse_entry(bytes, head.layout);
    if (const auto* fault = std::get_if<EntryFault>(&parsed)) usage_error("damaged: an entry: {}", fault->what);
    const OuterEntry& entry = std::get<OuterEntry>(parsed);
    const OuterFold::Outcome outcome = fold.add(entry);
    const bool used = outcome == OuterFold::Outcome::applied || outcome == OuterFold::Outcome::waits;
    ++(used ? result.applied[entry.group] : result.skipped[text_of(outcome)]);
  }
  result.is_cut_off = !text.empty();
  result.hash = hash_of(head.parameters, weights);
  result.version = fold.version(0);
  for (std::int64_t i = 1; i < head.layout.fragments; ++i) result.version = std::min(result.version, fold.version(i));
  return result;
}

}  // namespace

std::string hash_of(const std::vector<OuterParameter>& parameters, std::span<const float> weights) {
  Hash128 hash;
  std::size_t begin = 0;
  for (const OuterParameter& parameter : parameters) {
    hash.add(parameter.name);
    for (const std::int64_t extent : parameter.shape) hash.add(extent);
    const auto count = static_cast<std::size_t>(element_count(parameter.shape));
    hash.add(weights.data() + begin, count * sizeof(float));
    begin += count;
  }
  return hash.hex();
}

OuterRecorder::OuterRecorder(const std::filesystem::path& path, const OuterRecordHead& head,
                             std::span<const float> weights, std::span<const float> velocity)
    : path_(path.string()) {
  const Descriptor pipe = require_writable("--outer-record", path_);
  file_.open(path, std::ios::binary | std::ios::trunc);
  const std::string start = kOuterRecordStart + std::string(kRecordFormat) + json_of(head) + '\n';
  const std::array parts = {std::string_view(start), bytes_of(weights), bytes_of(velocity)};
  Hash128 hash;
  hash.begin(parts[0].size() + parts[1].size() + parts[2].size());
  for (const std::string_view part : parts) {
    hash.go_on(part.data(), part.size());
    file_ << part;
  }
  const RecordChecksum checksum = hash.value();
  file_.write(reinterpret_cast<const char*>(checksum.data()), sizeof(checksum));
  file_.flush();
  if (!file_) fail("--outer-record {}: writing failed", path_);
}

void OuterRecorder::add(std::string_view entry) {
  const std::uint64_t bytes = entry.size();
  file_.write(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  file_ << entry << std::flush;
  if (!file_) fail("--outer-record {}: writing failed", path_);
}

OuterReplay replay_record(const std::filesystem::path& path) {
  const MappedFile file(path);
  try {
    return replay(file.text());
  } catch (const json::exception&) {
    usage_error("{}: damaged: a field of its head is missing or has another type", path.string());
  } catch (const UsageError& error) {
    usage_error("{}: {}", path.string(), error.what());
  }
}

}  // namespace ddptrain
