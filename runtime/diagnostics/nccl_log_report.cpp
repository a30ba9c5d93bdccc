#include "runtime/diagnostics/nccl_log_report.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "runtime/core/error.h"
#include "runtime/core/text_table.h"

namespace ddptrain {

namespace {

using nlohmann::json;
using Rows = std::vector<std::vector<std::string>>;
using Tree = std::map<int, NcclTreeNode>;

std::string number_or_unknown(int number) { return number > 0 ? std::to_string(number) : "unknown"; }

/// 0-3, 7 of {0, 1, 2, 3, 7}
std::string list_of(const std::vector<int>& numbers) {
  std::string text;
  for (std::size_t i = 0; i < numbers.size();) {
    std::size_t last = i;
    while (last + 1 < numbers.size() && numbers[last + 1] == numbers[last] + 1) ++last;
    if (!text.empty()) text += ", ";
    text += last > i ? fmt::format("{}-{}", numbers[i], numbers[last]) : std::to_string(numbers[i]);
    i = last + 1;
  }
  return text;
}

/// Texts in the order of their first number, with the numbers that share one.
class Groups {
 public:
  void add(const std::string& text, int number) {
    const auto known = std::find_if(groups_.begin(), groups_.end(), [&](const auto& g) { return g.first == text; });
    if (known == groups_.end()) {
      groups_.emplace_back(text, std::vector<int>{number});
    } else {
      known->second.push_back(number);
    }
  }

  /// A table of numbers and texts under a title; empty where there are none.
  std::string table(const char* title) const {
    Rows rows;
    for (const auto& [text, numbers] : groups_) rows.push_back({list_of(numbers), text});
    return rows.empty() ? "" : fmt::format("\n{}\n{}", title, text_table(rows, 2));
  }

 private:
  std::vector<std::pair<std::string, std::vector<int>>> groups_;
};

/// 0 - 1 - 2 for a chain, 0 (1, 2 - 3) where a rank has several children. `left`: ranks not yet written.
std::string subtree_text(const Tree& tree, int rank, std::set<int>& left, int depth = 0) {
  std::string text = std::to_string(rank);
  left.erase(rank);
  const auto node = tree.find(rank);
  constexpr int kDeepest = 1000;  // no tree of NCCL's is as deep, but a damaged log may say so
  if (node == tree.end() || depth == kDeepest) return text + " ..";
  std::vector<std::string> children;
  for (const int child : node->second.children) {
    if (left.count(child) > 0 || tree.count(child) == 0) children.push_back(subtree_text(tree, child, left, depth + 1));
  }
  if (children.empty()) return text;
  if (children.size() == 1) return fmt::format("{} - {}", text, children[0]);
  return fmt::format("{} ({})", text, fmt::join(children, ", "));
}

/// Starts at the root; with lines missing, at every rank whose parent's line is missing.
std::string tree_text(const Tree& tree) {
  std::set<int> left;
  for (const auto& [rank, node] : tree) left.insert(rank);
  std::vector<std::string> parts;
  for (const auto& [rank, node] : tree) {
    if (node.parent >= 0 && tree.count(node.parent) > 0) continue;
    const std::string above = node.parent >= 0 ? fmt::format(".. {} - ", node.parent) : "";
    parts.push_back(above + subtree_text(tree, rank, left));
  }
  while (!left.empty()) parts.push_back(subtree_text(tree, *left.begin(), left));  // a damaged log: in circles
  return fmt::format("{}", fmt::join(parts, "; "));
}

std::string rings_text(const NcclLog& log) {
  Groups groups;
  for (const auto& [channel, ring] : log.rings) {
    groups.add(fmt::format("{} -> {}", fmt::join(ring, " -> "), ring.front()), channel);
  }
  return groups.table("Rings, by channel");
}

std::string trees_text(const NcclLog& log) {
  Groups groups;
  for (const auto& [channel, tree] : log.trees) groups.add(tree_text(tree), channel);
  return groups.table("Trees, by channel: root first, children behind their parent (.. a line is missing)");
}

std::string rank_or_network(const std::optional<int>& rank) { return rank ? std::to_string(*rank) : "network"; }

std::string transports_text(const NcclLog& log) {
  std::map<std::tuple<std::optional<int>, std::optional<int>, std::string>, std::vector<int>> channels;
  for (const NcclTransport& transport : log.transports) {
    channels[{transport.from, transport.to, transport.via}].push_back(transport.channel);
  }
  if (channels.empty()) return "";
  Rows rows = {{"from", "to", "via", "channels"}};
  for (const auto& [key, numbers] : channels) {
    const auto& [from, to, via] = key;
    rows.push_back({rank_or_network(from), rank_or_network(to), via, list_of(numbers)});
  }
  return fmt::format("\nTransports between ranks\n{}", text_table(rows, 2));
}

std::string graphs_text(const NcclLog& log) {
  if (log.graphs.empty()) return "";
  Rows rows = {{"pattern", "channels", "GB/s each, in a node", "between nodes", "farthest link", "to the NIC"}};
  for (const NcclGraph& graph : log.graphs) {
    rows.push_back({graph.pattern, std::to_string(graph.channels), fmt::format("{:.4g}", graph.intra_gb_per_s),
                    fmt::format("{:.4g}", graph.inter_gb_per_s), graph.intra_type, graph.inter_type});
  }
  return fmt::format("\nPatterns, with the rates that NCCL counts on\n{}", text_table(rows, 2));
}

std::string choices_text(const NcclLog& log) {
  if (log.choices.empty()) return "";
  Rows rows = {{"collective", "bytes", "algorithm", "protocol", "channels"}};
  for (const auto& [key, choice] : log.choices) {
    rows.push_back(
        {key.first, std::to_string(key.second), choice.algorithm, choice.protocol, number_or_unknown(choice.channels)});
  }
  return fmt::format("\nCollectives\n{}", text_table(rows, 2));
}

/// The ranks of each node, where there are several.
std::string nodes_text(const NcclLog& log) {
  if (log.ranks_by_node.size() < 2) return "";
  Rows rows = {{"node", "ranks"}};
  for (std::size_t i = 0; i < log.ranks_by_node.size(); ++i) {
    const NcclNode& node = log.ranks_by_node[i];
    rows.push_back({node.host.empty() ? std::to_string(i) : node.host, list_of(node.ranks)});
  }
  return fmt::format("\nRanks by node\n{}", text_table(rows, 2));
}

bool is_network(const NcclTransport& transport) { return transport.via.find("NET/") != std::string::npos; }

bool has_proxy(const NcclTransport& transport) { return transport.via.find('(') < transport.via.find("(PCI)"); }

/// How many of the transports over a network have a property.
template <class Property>
std::string share_of_networks(const NcclLog& log, const Property& property) {
  const auto all = std::count_if(log.transports.begin(), log.transports.end(), is_network);
  const auto such = std::count_if(log.transports.begin(), log.transports.end(),
                                  [&](const NcclTransport& t) { return is_network(t) && property(t); });
  return all == 0 ? "" : fmt::format("{} of {} connections over the network", such, all);
}

bool uses_gpu_direct(const NcclTransport& transport) { return transport.via.find("/GDRDMA") != std::string::npos; }

std::string gpu_direct_text(const NcclLog& log) {
  const NcclNetwork& network = log.network;
  std::vector<std::string> parts;
  if (const std::string share = share_of_networks(log, uses_gpu_direct); !share.empty()) parts.push_back(share);
  if (!network.gdr_enabled.empty())
    parts.push_back(fmt::format("enabled for {}", fmt::join(network.gdr_enabled, ", ")));
  if (!network.gdr_disabled.empty()) {
    parts.push_back(fmt::format("disabled for {}", fmt::join(network.gdr_disabled, ", ")));
  }
  return parts.empty() ? "unknown" : fmt::format("{}", fmt::join(parts, "; "));
}

bool is_pxn_disabled(const NcclLog& log) {
  const auto variable = log.environment.find("NCCL_PXN_DISABLE");
  return log.network.pxn_disabled || (variable != log.environment.end() && variable->second == "1");
}

/// PXN: a GPU sends over the NIC beside another GPU of its node.
std::string pxn_text(const NcclLog& log) {
  if (is_pxn_disabled(log)) return "disabled";
  const std::string share = share_of_networks(log, has_proxy);
  return share.empty() ? "unknown" : share;
}

std::string network_text(const NcclLog& log) {
  const NcclNetwork& network = log.network;
  const bool crosses = std::any_of(log.transports.begin(), log.transports.end(), is_network);
  if (network.name.empty() && !crosses && network.gdr_enabled.empty() && network.gdr_disabled.empty()) return "";
  Rows rows = {{"chosen", network.name.empty() ? "unknown" : network.name}};
  if (!network.adapters.empty()) rows.push_back({"adapters", fmt::format("{}", fmt::join(network.adapters, " "))});
  rows.push_back({"GPUDirect RDMA", gpu_direct_text(log)});
  rows.push_back({"PXN", pxn_text(log)});
  return fmt::format("\nNetwork\n{}", text_table(rows, 2));
}

std::string enabled_text(const NcclLog& log) {
  if (log.enabled.empty()) return "";
  Rows rows = {{"collective", "algorithms", "protocols"}};
  for (const auto& [collective, enabled] : log.enabled) {
    rows.push_back({collective, fmt::format("{}", fmt::join(enabled.algorithms, " ")),
                    fmt::format("{}", fmt::join(enabled.protocols, " "))});
  }
  return fmt::format("\nAlgorithms and protocols that NCCL enabled\n{}", text_table(rows, 2));
}

std::string environment_text(const NcclLog& log, const std::vector<IneffectiveSetting>& ineffective) {
  Rows effective;
  for (const auto& [name, value] : log.environment) effective.push_back({name, value});
  Rows rows;
  for (const auto& setting : ineffective) {
    rows.push_back({fmt::format("{}={}", setting.name, setting.value), setting.why});
  }
  std::string text;
  if (!effective.empty()) text += fmt::format("\nSet by environment, as NCCL tells\n{}", text_table(effective, 2));
  if (!rows.empty()) text += fmt::format("\nWithout effect\n{}", text_table(rows, 2));
  return text;
}

std::string unread_text(const NcclLog& log) {
  std::string text;
  if (log.unreadable_lines > 0) {
    text += fmt::format("\n{} line{} could not be read, or not to the end (cut, damaged or of an unknown form):\n",
                        log.unreadable_lines, log.unreadable_lines == 1 ? "" : "s");
    for (const std::string& example : log.unreadable_examples) text += fmt::format("  {}\n", example);
    const auto shown = static_cast<std::int64_t>(log.unreadable_examples.size());
    if (log.unreadable_lines > shown) text += fmt::format("  and {} more\n", log.unreadable_lines - shown);
  }
  if (log.contradictions > 0) {
    text += fmt::format(
        "\n{} line{} contradict earlier ones: the log is of several communicators or runs. The first one is shown.\n",
        log.contradictions, log.contradictions == 1 ? "" : "s");
  }
  return text;
}

/// Whether nodes may be ranks of one host that were told different host names.
bool is_emulated(const NcclLog& log) { return log.environment.count("NCCL_HOSTID") > 0; }

json tree_json(const Tree& tree) {
  json nodes = json::array();
  for (const auto& [rank, node] : tree) {
    nodes.push_back({{"rank", rank},
                     {"parent", node.parent >= 0 ? json(node.parent) : json(nullptr)},
                     {"children", node.children}});
  }
  return nodes;
}

/// An array in which a channel's number is its place; null for those that the log does not have.
template <class T, class Convert>
json by_channel(const std::map<int, T>& channels, const Convert& convert) {
  json all = json::array();
  for (const auto& [channel, value] : channels) {
    while (all.size() < static_cast<std::size_t>(channel)) all.push_back(nullptr);
    all.push_back(convert(value));
  }
  return all;
}

json network_json(const NcclLog& log) {
  const NcclNetwork& network = log.network;
  const auto any = [&](const auto& property) -> json {
    const auto matches = [&](const NcclTransport& t) { return is_network(t) && property(t); };
    if (std::none_of(log.transports.begin(), log.transports.end(), is_network)) return nullptr;
    return std::any_of(log.transports.begin(), log.transports.end(), matches);
  };
  return {{"name", network.name.empty() ? json(nullptr) : json(network.name)},
          {"adapters", network.adapters},
          {"gpu_direct_enabled", network.gdr_enabled},
          {"gpu_direct_disabled", network.gdr_disabled},
          {"gpu_direct_used", any(uses_gpu_direct)},
          {"pxn_used", any(has_proxy)},
          {"pxn_disabled", is_pxn_disabled(log)}};
}

json positive_or_null(int number) { return number > 0 ? json(number) : json(nullptr); }
json rank_or_null(const std::optional<int>& rank) { return rank ? json(*rank) : json(nullptr); }

}  // namespace

std::string nccl_text(const NcclLog& log, const std::vector<IneffectiveSetting>& ineffective) {
  if (says_nothing(log)) {
    return "Nothing of NCCL was found in the log. NCCL writes it with NCCL_DEBUG=INFO and "
           "NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING,NET.\n";
  }
  const std::string ranks = log.ranks > 0 && !log.ranks_told ? fmt::format("{} (counted from those named)", log.ranks)
                                                             : number_or_unknown(log.ranks);
  const std::string emulated = is_emulated(log) ? " (emulated: NCCL_HOSTID is set)" : "";
  return text_table({{"NCCL version", log.version},
                     {"Ranks", ranks},
                     {"Nodes", number_or_unknown(log.nodes) + emulated},
                     {"Channels", number_or_unknown(log.channels)}}) +
         nodes_text(log) + network_text(log) + rings_text(log) + trees_text(log) + transports_text(log) +
         graphs_text(log) + enabled_text(log) + choices_text(log) + environment_text(log, ineffective) +
         unread_text(log);
}

json nccl_json(const NcclLog& log, const std::vector<IneffectiveSetting>& ineffective) {
  json nccl = {{"version", log.version == "unknown" ? json(nullptr) : json(log.version)},
               {"ranks", positive_or_null(log.ranks)},
               {"nodes", positive_or_null(log.nodes)},
               {"emulated", is_emulated(log)},
               {"channels", positive_or_null(log.channels)},
               {"rings", by_channel(log.rings, [](const std::vector<int>& ring) { return json(ring); })},
               {"trees", by_channel(log.trees, tree_json)},
               {"transports", json::array()},
               {"graphs", json::array()},
               {"collectives", json::array()},
               {"environment", log.environment},
               {"ineffective", json::array()},
               {"contradictions", log.contradictions},
               {"unreadable_lines", log.unreadable_lines}};
  for (const NcclTransport& transport : log.transports) {
    nccl["transports"].push_back({{"from", rank_or_null(transport.from)},
                                  {"to", rank_or_null(transport.to)},
                                  {"channel", transport.channel},
                                  {"via", transport.via}});
  }
  for (const NcclGraph& graph : log.graphs) {
    nccl["graphs"].push_back({{"pattern", graph.pattern},
                              {"channels", graph.channels},
                              {"intra_gb_per_s", graph.intra_gb_per_s},
                              {"inter_gb_per_s", graph.inter_gb_per_s},
                              {"intra_type", graph.intra_type},
                              {"inter_type", graph.inter_type}});
  }
  for (const auto& [key, choice] : log.choices) {
    nccl["collectives"].push_back({{"collective", key.first},
                                   {"bytes", key.second},
                                   {"algorithm", choice.algorithm},
                                   {"protocol", choice.protocol},
                                   {"channels", positive_or_null(choice.channels)}});
  }
  nccl["ranks_by_node"] = json::array();
  for (const NcclNode& node : log.ranks_by_node) {
    nccl["ranks_by_node"].push_back(
        {{"host", node.host.empty() ? json(nullptr) : json(node.host)}, {"ranks", node.ranks}});
  }
  nccl["enabled"] = json::array();
  for (const auto& [collective, enabled] : log.enabled) {
    nccl["enabled"].push_back(
        {{"collective", collective}, {"algorithms", enabled.algorithms}, {"protocols", enabled.protocols}});
  }
  nccl["network"] = network_json(log);
  for (const IneffectiveSetting& setting : ineffective) {
    nccl["ineffective"].push_back({{"name", setting.name}, {"value", setting.value}, {"why", setting.why}});
  }
  return nccl;
}

}  // namespace ddptrain
