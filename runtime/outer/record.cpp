#include "runtime/outer/record.h"

#include <algorithm>
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

OuterReplay replay(std::string_view text) {
  const std::string start = kOuterRecordStart + std::string("\n");
  if (!text.starts_with(start)) usage_error("it is no file of --outer-record");
  text.remove_prefix(start.size());
  const std::size_t end = text.substr(0, kLongestHead).find('\n');
  if (end == text.npos) usage_error("cut off");
  const OuterRecordHead head = head_in(parse_json_object(text.substr(0, end), "its head"));
  text.remove_prefix(end + 1);
  std::vector<float> weights = take_floats(text, head.layout.size);
  std::vector<float> velocity;
  if (head.rule.optimizer == OuterOptimizer::nesterov) velocity = take_floats(text, head.layout.size);
  OuterFold fold(head.rule, head.layout, weights, velocity);
  fold.restore(head.fold);
  OuterReplay result;
  while (text.size() >= sizeof(std::uint64_t)) {
    std::uint64_t bytes = 0;
    std::memcpy(&bytes, text.data(), sizeof(bytes));
    text.remove_prefix(sizeof(bytes));
    if (bytes > text.size()) break;  // the run was killed while it wrote
    const auto parsed = parse_entry(take(text, bytes), head.layout);
    if (const auto* fault = std::get_if<EntryFault>(&parsed)) usage_error("damaged: an entry: {}", fault->what);
    const OuterEntry& entry = std::get<OuterEntry>(parsed);
    const OuterFold::Outcome outcome = fold.add(entry);
    const bool used = outcome == OuterFold::Outcome::applied || outcome == OuterFold::Outcome::waits;
    ++(used ? result.applied[entry.group] : result.skipped[text_of(outcome)]);
  }
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
  require_writable("--outer-record", path_);
  file_.open(path, std::ios::binary | std::ios::trunc);
  file_ << kOuterRecordStart << '\n' << json_of(head) << '\n' << bytes_of(weights) << bytes_of(velocity) << std::flush;
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
