#include "runtime/diagnostics/nccl_log_words.h"

#include <spdlog/fmt/fmt.h>

#include <array>
#include <cctype>

namespace ddptrain {

namespace {

bool is_name_character(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_' || c == '-'; }
bool is_network_character(char c) { return is_name_character(c) || c == ' '; }  // AWS Libfabric

}  // namespace

std::string NcclScanner::name() { return taken_while(is_name_character); }
std::string NcclScanner::network() { return taken_while(is_network_character); }
std::string NcclScanner::word() {
  return taken_while([](char c) { return c != ' '; });
}

std::string NcclScanner::taken_while(bool (*belongs)(char)) {
  const auto end = std::find_if_not(rest_.begin(), rest_.end(), belongs);
  std::string taken(rest_.begin(), end);
  rest_.remove_prefix(taken.size());
  return taken;
}

std::string nccl_algorithm_name(const std::string& raw) {
  static constexpr std::array<const char*, 7> kNames = {"Tree",     "Ring", "CollNetDirect", "CollNetChain", "NVLS",
                                                        "NVLSTree", "PAT"};
  if (raw.size() == 1 && raw[0] >= '0' && raw[0] <= '6') return kNames[static_cast<std::size_t>(raw[0] - '0')];
  if (raw == "RING") return "Ring";
  if (raw == "TREE") return "Tree";
  return raw;
}

std::string nccl_protocol_name(const std::string& raw) {
  static constexpr std::array<const char*, 3> kNames = {"LL", "LL128", "Simple"};
  if (raw.size() == 1 && raw[0] >= '0' && raw[0] <= '2') return kNames[static_cast<std::size_t>(raw[0] - '0')];
  return raw == "SIMPLE" ? "Simple" : raw;
}

std::string nccl_pattern_name(int number) {
  static constexpr std::array<const char*, 7> kNames = {"",     "Balanced tree", "Split tree",    "Tree",
                                                        "Ring", "NVLS",          "CollNet direct"};
  if (number >= 1 && number < static_cast<int>(kNames.size())) return kNames[static_cast<std::size_t>(number)];
  return fmt::format("Pattern {}", number);
}

std::string nccl_host_of(std::string_view prefix) {
  const auto bracket = prefix.rfind(" [");
  if (bracket == std::string_view::npos) return "";
  prefix = prefix.substr(0, bracket);
  for (int part = 0; part < 2; ++part) {
    const auto colon = prefix.rfind(':');
    if (colon == std::string_view::npos || colon + 1 == prefix.size()) return "";
    const std::string_view number = prefix.substr(colon + 1);
    if (!std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; })) return "";
    prefix = prefix.substr(0, colon);
  }
  const auto is_other = [](char c) { return !is_name_character(c) && c != '.'; };
  const auto start = std::find_if(prefix.rbegin(), prefix.rend(), is_other).base();
  return {start, prefix.end()};
}

std::optional<std::string> read_nccl_via(NcclScanner& in) {
  if (in.skip("direct shared memory")) return "SHM";
  if (in.skip("P2P/")) {
    for (const char* kind : {"direct pointer", "CUMEM", "MNNVL", "IPC"}) {
      if (in.skip(kind)) return fmt::format("P2P/{}{}", kind, in.skip("/read") ? "/read" : "");
    }
    if (!in.skip("indirect/")) return std::nullopt;
    const auto middle = in.rank();
    return middle ? std::optional(fmt::format("P2P/indirect/{}", *middle)) : std::nullopt;
  }
  if (in.skip("SHM/")) {
    std::string via = "SHM";
    for (const char* end : {"/", ""}) {
      const bool direct = in.skip("direct");
      if (!direct && !in.skip("CE")) return std::nullopt;
      via += direct ? "/direct" : "/CE";
      in.skip(end);
    }
    return via;
  }
  const bool coll_net = in.skip("COLLNET/");
  if (!coll_net && !in.skip("NET/")) return std::nullopt;
  std::string via = (coll_net ? "COLLNET/" : "NET/") + in.network();
  const auto device = in.skip("/") ? in.number_up_to(kMostNcclRanks) : std::nullopt;
  if (!device) return std::nullopt;
  via += fmt::format("/{}", *device);
  if (in.skip("(")) {
    const auto proxy = in.rank();
    if (!proxy || !in.skip(")")) return std::nullopt;
    via += fmt::format("({})", *proxy);
  }
  for (const char* suffix : {"/GDRDMA", "(PCI)", "/Shared"}) {
    if (in.skip(suffix)) via += suffix;
  }
  return via;
}

std::optional<int> read_nccl_peer(NcclScanner& in) {
  const auto rank = in.rank();
  if (rank && in.skip("[") && !in.skip_past("]")) return std::nullopt;
  return rank;
}

}  // namespace ddptrain
