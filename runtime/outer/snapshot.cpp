#include "runtime/outer/snapshot.h"

#include <charconv>
#include <limits>
#include <utility>

#include "runtime/core/error.h"
#include "runtime/core/files/json.h"
#include "runtime/core/hash.h"

namespace ddptrain {
namespace {

using nlohmann::json;

constexpr std::size_t kChecksumDigits = 32;
constexpr std::size_t kLongestId = 32;
constexpr std::size_t kMostHeads = 8;

using Position = std::pair<std::uint64_t, std::uint64_t>;

std::uint64_t number_in(std::string_view digits) {
  std::uint64_t value = 0;
  std::from_chars(digits.data(), digits.data() + digits.size(), value);
  return value;
}

Position position_in(std::string_view text) {
  const std::size_t dash = text.find('-');
  return {number_in(text.substr(0, dash)), dash == text.npos ? 0 : number_in(text.substr(dash + 1))};
}

bool is_position(std::string_view text) {
  constexpr std::size_t kLongest = 2 * std::numeric_limits<std::uint64_t>::digits10 + 4;
  return text.size() <= kLongest && text.find_first_not_of("0123456789-") == text.npos;
}

SnapshotHead head_in(const json& from) {
  SnapshotHead head;
  from.at("id").get_to(head.id);
  from.at("position").get_to(head.position);
  from.at("checksum").get_to(head.checksum);
  from.at("record").get_to(head.record);
  for (const auto& [name, value] : {std::pair{"run", &head.run}, {"version", &head.version}, {"bytes", &head.bytes}}) {
    if (!from.at(name).is_number_unsigned()) usage_error("damaged: {}", name);
    from.at(name).get_to(*value);
  }
  const bool is_hex = head.id.find_first_not_of("0123456789abcdef") == head.id.npos;
  if (head.id.empty() || head.id.size() > kLongestId || !is_hex || !is_position(head.position)) {
    usage_error("damaged: a name or a position");
  }
  return head;
}

}  // namespace

bool is_later(std::string_view position, std::string_view than) { return position_in(position) > position_in(than); }

std::string write_snapshot_list(const std::vector<SnapshotHead>& heads) {
  json list = json::array();
  for (const SnapshotHead& head : heads) {
    list.push_back({{"id", head.id},
                    {"run", head.run},
                    {"position", head.position},
                    {"version", head.version},
                    {"bytes", head.bytes},
                    {"checksum", head.checksum},
                    {"record", head.record}});
  }
  const std::string text = json{{"snapshots", list}}.dump();
  return xxh3_128(text.data(), text.size()) + text;
}

std::optional<std::vector<SnapshotHead>> parse_snapshot_list(std::string_view text) {
  if (text.size() < kChecksumDigits) return std::nullopt;
  const std::string_view content = text.substr(kChecksumDigits);
  if (xxh3_128(content.data(), content.size()) != text.substr(0, kChecksumDigits)) return std::nullopt;
  try {
    std::vector<SnapshotHead> heads;
    const json list = parse_json_object(content, "the list of snapshots");
    for (const json& each : list.at("snapshots")) {
      if (heads.size() == kMostHeads) return std::nullopt;
      heads.push_back(head_in(each));
    }
    return heads;
  } catch (const json::exception&) {
    return std::nullopt;
  } catch (const UsageError&) {
    return std::nullopt;
  }
}

}  // namespace ddptrain
