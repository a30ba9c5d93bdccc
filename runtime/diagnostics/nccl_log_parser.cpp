#include "runtime/diagnostics/nccl_log_parser.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <istream>
#include <set>
#include <string_view>

#include "runtime/core/error.h"
#include "runtime/core/printable.h"
#include "runtime/diagnostics/nccl_log_words.h"
#include "runtime/diagnostics/nccl_nodes.h"

namespace ddptrain {

namespace {

constexpr std::size_t kMostExamples = 3;
constexpr std::size_t kMostAdapters = 256;
constexpr std::size_t kMostCollectives = 32;

/// One pass over a log. Every read_*() is called with what follows "NCCL INFO " and says what became of it.
class Reader {
 public:
  void read(const std::string& line, bool is_whole) {
    ++line_number_;
    line_is_whole_ = is_whole;
    constexpr std::string_view kMark = "NCCL INFO ";
    const std::string_view text = line;
    std::size_t at = text.find(kMark);
    if (at == std::string_view::npos && text.rfind("NCCL version ", 0) == 0) note(read_subject(text), text);
    if (at == std::string_view::npos) read_matrix_row(text);
    while (at != std::string_view::npos) {
      const std::size_t start = at + kMark.size();
      host_ = nccl_host_of(text.substr(0, at));
      at = text.find(kMark, start);
      const std::string_view message = text.substr(start, at == std::string_view::npos ? at : at - start);
      message_is_whole_ = at == std::string_view::npos && line_is_whole_;
      note(read_subject(message), message);
    }
  }

  NcclLog result() && {
    log_.transports.assign(transports_.begin(), transports_.end());
    if (log_.channels == 0) log_.channels = ring_channels_;
    log_.ranks_told = log_.ranks > 0;
    if (!log_.ranks_told) log_.ranks = highest_rank_ + 1;
    close_rings();
    drop_cut_rings();
    log_.ranks_by_node = ranks_by_node(places_, log_.transports, log_.ranks, log_.nodes);
    for (const auto& [name, values] : environment_) {
      log_.environment.emplace(name, fmt::format("{}", fmt::join(values, kNcclValueSeparator)));
    }
    return std::move(log_);
  }

 private:
  enum class Found { nothing, read, unreadable };

  void note(Found found, std::string_view message) {
    if (found != Found::unreadable) return;
    ++log_.unreadable_lines;
    add_example(line_number_, message);
  }

  void add_example(std::int64_t line_number, std::string_view message) {
    if (log_.unreadable_examples.size() >= kMostExamples) return;
    log_.unreadable_examples.push_back(fmt::format("line {}: {}", line_number, printable(message)));
  }

  Found read_subject(std::string_view message) {
    NcclScanner in(message);
    in.skip_spaces();
    if (in.skip("Channel ")) return read_channel(in);
    if (in.skip("Ring ")) return read_neighbours(in);
    if (in.skip("CollNet ") || in.skip("Coll ")) return read_coll_net(in);
    if (in.skip("Trees ")) return read_trees(in);
    if (in.skip("comm 0x")) return read_communicator(in);
    if (in.skip("NCCL version ")) return read_version(in);
    if (in.skip("Pattern ")) return read_graph(in);
    if (in.rest().rfind("NCCL_", 0) == 0) return read_environment(in);
    if (in.skip("Using network ")) return read_network(in);
    if (in.skip("PXN Disabled")) log_.network.pxn_disabled = true;
    if (in.rest().find("GPU Direct RDMA ") != std::string_view::npos) return read_gpu_direct(in);
    if (in.rest().rfind("NET/", 0) == 0) return read_adapters(in);
    if (in.rest().find(" - NVS/") != std::string_view::npos) log_.has_nvswitch = true;
    if (in.rest().find(" coll channels") != std::string_view::npos) return read_channel_counts(in);
    if (in.rest().find(" Bytes -> ") != std::string_view::npos) return read_choice(in);
    return Found::nothing;
  }

  Found read_version(NcclScanner in) {
    std::array<int, 3> parts{};
    for (std::size_t i = 0; i < parts.size(); ++i) {
      const auto part = in.number_up_to(99999);
      if (!part || (i < 2 && !in.skip("."))) return Found::unreadable;
      parts[i] = *part;
    }
    return keep_first(log_.version, std::string("unknown"), fmt::format("{}", fmt::join(parts, ".")));
  }

  /// Channel 00/02 : 0 1 2 3 is a ring; Channel 00/0 : 1[1] -> 0[0] via ... and Channel 00 : ... a transport.
  Found read_channel(NcclScanner in) {
    const auto channel = in.channel();
    if (!channel) return Found::unreadable;
    std::optional<int> second;
    if (in.skip("/")) {
      second = in.number_up_to(kMostNcclChannels);
      if (!second) return Found::unreadable;
    }
    in.skip_spaces();
    if (!in.skip(":")) return Found::unreadable;
    if (in.rest().find("->") == std::string_view::npos) {
      return second ? read_ring(in, *channel, *second) : Found::unreadable;
    }
    return read_transport(in, *channel);
  }

  Found read_ring(NcclScanner in, int channel, int channels) {
    std::vector<int> ring;
    for (in.skip_spaces(); !in.at_end(); in.skip_spaces()) {
      const auto rank = in.rank();
      if (!rank) break;  // another rank's line, if the ring is complete, which is judged at the end
      ring.push_back(*rank);
      highest_rank_ = std::max(highest_rank_, *rank);
    }
    const std::set<int> different(ring.begin(), ring.end());
    if (ring.empty() || different.size() != ring.size() || channel >= channels) return Found::unreadable;
    ring_channels_ = std::max(ring_channels_, channels);
    const auto [entry, is_new] = log_.rings.emplace(channel, ring);
    if (is_new) {
      ring_lines_.emplace(channel, line_number_);
    } else if (entry->second != ring) {
      ++log_.contradictions;
    }
    return Found::read;
  }

  /// Ring 00 : 3 -> 0 -> 1: a rank between its neighbours.
  Found read_neighbours(NcclScanner in) {
    const auto channel = in.channel();
    if (!channel || !in.skip(" : ")) return Found::nothing;
    std::array<int, 3> ranks{};
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      const auto rank = in.rank();
      if (!rank || (i < 2 && !in.skip(" -> "))) return Found::unreadable;
      ranks[i] = *rank;
    }
    if (in.at_end() && !line_is_whole_) return Found::unreadable;  // the last number may be cut
    highest_rank_ = std::max({highest_rank_, ranks[0], ranks[1], ranks[2]});
    const auto [entry, is_new] = next_ranks_[*channel].emplace(ranks[1], ranks[2]);
    if (!is_new && entry->second != ranks[2]) ++log_.contradictions;
    return Found::read;
  }

  /// Rings of which all ranks named their neighbours, where the line of the whole ring is cut or missing.
  void close_rings() {
    for (const auto& [channel, next] : next_ranks_) {
      const auto known = log_.rings.find(channel);
      if (known != log_.rings.end() && static_cast<int>(known->second.size()) == log_.ranks) continue;
      std::vector<int> ring = {0};
      auto link = next.find(0);
      while (link != next.end() && link->second != 0 && ring.size() < next.size()) {
        ring.push_back(link->second);
        link = next.find(link->second);
      }
      const bool closed = link != next.end() && link->second == 0;
      if (closed && static_cast<int>(ring.size()) == log_.ranks) log_.rings[channel] = ring;
    }
  }

  /// NCCL cuts long rings at 127 characters, and files end anywhere.
  void drop_cut_rings() {
    for (auto ring = log_.rings.begin(); ring != log_.rings.end();) {
      if (static_cast<int>(ring->second.size()) == log_.ranks) {
        ++ring;
        continue;
      }
      ++log_.unreadable_lines;
      add_example(ring_lines_.at(ring->first),
                  fmt::format("ring of channel {} with {} of {} ranks", ring->first, ring->second.size(), log_.ranks));
      ring = log_.rings.erase(ring);
    }
  }

  Found read_transport(NcclScanner in, int channel) {
    in.skip_spaces();
    const auto from = read_nccl_peer(in);
    if (!from || !in.skip(" -> ")) return Found::unreadable;
    const auto to = read_nccl_peer(in);
    if (!to || !in.skip_past(" via ")) return Found::unreadable;
    const auto via = read_nccl_via(in);
    if (!via) return Found::unreadable;
    highest_rank_ = std::max({highest_rank_, *from, *to});
    transports_.insert({from, to, channel, *via});
    return Found::read;
  }

  Found read_coll_net(NcclScanner in) {
    const auto channel = in.channel();
    if (!channel || !in.skip_past(": ")) return Found::unreadable;
    const auto rank = in.rank();
    if (!rank) return Found::unreadable;
    const bool receives = in.skip(" [receive]");
    if (!in.skip_past(" via ")) return Found::unreadable;
    const auto via = read_nccl_via(in);
    if (!via) return Found::unreadable;
    transports_.insert({receives ? std::nullopt : rank, receives ? rank : std::nullopt, *channel, *via});
    return Found::read;
  }

  /// [channel] child/child/child->rank->parent, as often as there are channels.
  Found read_trees(NcclScanner in) {
    Found found = Found::unreadable;
    for (in.skip_spaces(); in.skip("["); in.skip_spaces()) {
      const auto channel = in.channel();
      if (!channel || !in.skip("] ")) return Found::unreadable;
      const auto node = read_tree_node(in);
      if (!node) return Found::unreadable;
      if (in.skip("|")) in.word();  // NCCL 2.7 and before wrote the second tree behind it
      if (in.at_end() && !line_is_whole_) return Found::unreadable;  // the parent's number may be cut
      add_tree_node(*channel, *node);
      found = Found::read;
    }
    // Another rank's line may follow; an ellipsis or half an entry means that something is missing.
    return in.skip("...") ? Found::unreadable : found;
  }

  std::optional<NcclTreeNode> read_tree_node(NcclScanner& in) const {
    const auto rank_or_none = [&in]() -> std::optional<int> {
      if (in.skip("-1")) return -1;
      return in.rank();
    };
    NcclTreeNode node;
    for (int i = 0; i < 3; ++i) {
      const auto child = rank_or_none();
      if (!child || (i < 2 && !in.skip("/"))) return std::nullopt;
      if (*child >= 0) node.children.push_back(*child);
    }
    if (!in.skip("->")) return std::nullopt;
    const auto self = in.rank();
    if (!self || !in.skip("->")) return std::nullopt;
    const auto parent = rank_or_none();
    if (!parent) return std::nullopt;
    node.rank = *self;
    node.parent = *parent;
    return node;
  }

  void add_tree_node(int channel, const NcclTreeNode& node) {
    highest_rank_ = std::max({highest_rank_, node.rank, node.parent});
    for (const int child : node.children) highest_rank_ = std::max(highest_rank_, child);
    const auto [entry, is_new] = log_.trees[channel].emplace(node.rank, node);
    const NcclTreeNode& known = entry->second;
    if (!is_new && (known.parent != node.parent || known.children != node.children)) ++log_.contradictions;
  }

  /// comm 0x... rank 0 nRanks 4 nNodes 2 ..., and older: comm 0x... rank 0 nranks 4 cudaDev 0 ... - Init COMPLETE
  Found read_communicator(NcclScanner in) {
    if (!in.skip_past(" rank ")) return Found::nothing;
    const auto rank = in.rank();
    if (!rank || (!in.skip(" nRanks ") && !in.skip(" nranks "))) return Found::unreadable;
    const auto ranks = in.number_up_to(kMostNcclRanks);
    if (!ranks || *ranks == 0 || (in.at_end() && !line_is_whole_)) return Found::unreadable;
    const Found found = keep_first(log_.ranks, 0, *ranks);
    if (!in.skip(" nNodes ")) return found;
    const auto nodes = in.number_up_to(kMostNcclRanks);
    if (!nodes || (in.at_end() && !line_is_whole_)) return Found::unreadable;
    const auto local_ranks = in.skip(" localRanks ") ? in.number_up_to(kMostNcclRanks) : std::nullopt;
    const auto local_rank = local_ranks && in.skip(" localRank ") ? in.rank() : std::nullopt;
    if (local_rank && (!in.at_end() || line_is_whole_))
      places_.emplace(*rank, NcclPlace{*local_rank, *local_ranks, host_});
    return keep_first(log_.nodes, 0, *nodes);
  }

  Found read_network(NcclScanner in) {
    std::string name = in.network();
    while (!name.empty() && name.back() == ' ') name.pop_back();
    if (name.empty() || !message_is_whole_) return Found::unreadable;
    return keep_first(log_.network.name, std::string(), name);
  }

  /// GPU Direct RDMA Enabled for GPU 0 / HCA 1 (distance 4 <= 5), ...; NET/IB : GPU Direct RDMA Disabled for HCA 0 'x'
  Found read_gpu_direct(NcclScanner in) {
    in.skip_past("GPU Direct RDMA ");
    const bool enabled = in.skip("Enabled for ");
    if (!enabled && !in.skip("Disabled for ")) return Found::nothing;
    std::string_view what = in.rest().substr(0, in.rest().find(" ("));
    while (!what.empty() && (what.back() == ' ' || what.back() == '\r')) what.remove_suffix(1);
    auto& known = enabled ? log_.network.gdr_enabled : log_.network.gdr_disabled;
    if (known.size() < kMostAdapters) known.insert(printable(what));
    return Found::read;
  }

  /// NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>
  Found read_adapters(NcclScanner in) {
    if (!in.skip_past(" : Using ") || in.rest().rfind("[0]", 0) != 0) return Found::nothing;
    std::vector<std::string> adapters;
    for (; in.rest().rfind('[', 0) == 0 && adapters.size() < kMostAdapters; in.skip_spaces()) {
      std::string adapter = in.word();
      if (adapter.ends_with(';') || adapter.starts_with("[RO]")) break;
      adapters.push_back(printable(adapter));
    }
    if (adapters.size() > log_.network.adapters.size())
      log_.network.adapters = adapters;  // a node with fewer is no news
    return Found::read;
  }

  /// Of the table behind "Enabled NCCL Func/Proto/Algo Matrix:", whose lines begin without a mark: its head
  /// Function |  LL LL128 Simple | Tree Ring ..., and rows such as AllReduce | 1 2 1 | 1 1 ...; 0 is disabled.
  void read_matrix_row(std::string_view line) {
    NcclScanner in(line);
    in.skip_spaces();
    const std::string name = in.name();
    in.skip_spaces();
    if (name.empty() || !in.skip("|")) return;
    std::array<std::vector<std::string>, 2> cells;  // protocols, algorithms
    for (std::size_t half = 0; half < 2; ++half) {
      if (half == 1 && !in.skip("|")) return;
      for (in.skip_spaces(); !in.at_end() && in.rest().front() != '|'; in.skip_spaces()) {
        cells[half].push_back(in.name());
        if (cells[half].back().empty()) return;
      }
    }
    if (name == "Function") {
      matrix_head_ = cells;
      return;
    }
    if (cells[0].size() != matrix_head_[0].size() || cells[1].size() != matrix_head_[1].size()) return;
    NcclEnabled enabled;
    for (std::size_t i = 0; i < cells[0].size(); ++i) {
      if (cells[0][i] != "0") enabled.protocols.push_back(matrix_head_[0][i]);
    }
    for (std::size_t i = 0; i < cells[1].size(); ++i) {
      if (cells[1][i] != "0") enabled.algorithms.push_back(matrix_head_[1][i]);
    }
    if (!cells[0].empty() && log_.enabled.size() < kMostCollectives) log_.enabled.emplace(name, enabled);
  }

  Found read_channel_counts(NcclScanner in) {
    const auto channels = in.channel();
    if (!channels || !in.skip(" coll channels")) return Found::unreadable;
    log_.channels = std::max(log_.channels, *channels);
    in.skip_past(" collnet channels");  // from 2.20 on
    if (!in.skip(", ")) return Found::read;
    const auto nvls = in.channel();
    if (nvls && in.skip(" nvls channels")) log_.nvls_channels = std::max(log_.nvls_channels.value_or(0), *nvls);
    return Found::read;
  }

  /// Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1; before 2.13 "speed" for "bw".
  Found read_graph(NcclScanner in) {
    const auto pattern = in.number_up_to(99);
    if (!pattern || !in.skip_past("nChannels ")) return Found::unreadable;
    NcclGraph graph;
    graph.pattern = nccl_pattern_name(*pattern);
    const auto channels = in.channel();
    if (!channels || (!in.skip(", bw ") && !in.skip(", speed "))) return Found::unreadable;
    const auto intra = in.number<double>();
    const auto inter = in.skip("/") ? in.number<double>() : std::nullopt;
    if (!intra || !inter || !in.skip(", type ")) return Found::unreadable;
    graph.channels = *channels;
    graph.intra_gb_per_s = *intra;
    graph.inter_gb_per_s = *inter;
    graph.intra_type = in.name();
    if (!in.skip("/")) return Found::unreadable;
    graph.inter_type = in.name();
    if (!in.skip(",")) return Found::unreadable;
    if (std::find(log_.graphs.begin(), log_.graphs.end(), graph) == log_.graphs.end()) log_.graphs.push_back(graph);
    return Found::read;
  }

  /// NCCL_NAME set by environment to VALUE; integers end with a dot.
  Found read_environment(NcclScanner in) {
    const std::string name = in.name();
    if (!in.skip(" set by environment to ") && !in.skip(" set to ")) return Found::nothing;
    if (!message_is_whole_ || in.at_end()) return Found::unreadable;
    std::string value(in.rest());
    while (!value.empty() && (value.back() == ' ' || value.back() == '\r')) value.pop_back();
    NcclScanner number(value);
    if (number.number<std::int64_t>() && number.rest() == ".") value.pop_back();
    auto& known = environment_[name];
    constexpr std::size_t kMostValues = 8;
    const bool is_new = std::find(known.begin(), known.end(), value) == known.end();
    if (is_new && known.size() < kMostValues) known.push_back(value);
    return Found::read;
  }

  /// AllReduce: 2097152 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..15}, before: ... Algo 1 proto 2 time 98.5;
  /// 2.20 to 2.22 do not name the collective.
  Found read_choice(NcclScanner in) {
    const bool is_named = in.rest().empty() || std::isdigit(static_cast<unsigned char>(in.rest().front())) == 0;
    const std::string collective = is_named ? in.name() : kNcclUnnamedCollective;
    const bool symmetric = in.skip(" [Symmetric]");
    if (is_named && !in.skip(": ")) return Found::nothing;
    const auto bytes = in.number<std::int64_t>();
    if (!bytes || *bytes < 0 || !in.skip(" Bytes -> ")) return Found::unreadable;
    const auto choice = symmetric ? read_symmetric(in, collective) : read_algorithm(in);
    if (!choice) return Found::unreadable;
    log_.choices.insert_or_assign({collective, *bytes}, *choice);
    return Found::read;
  }

  static std::optional<NcclChoice> read_algorithm(NcclScanner& in) {
    if (!in.skip("Algo ")) return std::nullopt;
    NcclChoice choice;
    choice.algorithm = nccl_algorithm_name(in.name());
    if (!in.skip(" proto ")) return std::nullopt;
    choice.protocol = nccl_protocol_name(in.name());
    if (in.skip(" time ")) return choice;
    if (!in.skip(" channel{Lo..Hi}={")) return std::nullopt;
    const auto low = in.channel();
    const auto high = in.skip("..") ? in.channel() : std::nullopt;
    if (!low || !high || *high < *low || !in.skip("}")) return std::nullopt;
    choice.channels = *high - *low + 1;
    return choice;
  }

  static std::optional<NcclChoice> read_symmetric(NcclScanner& in, const std::string& collective) {
    if (!in.skip("Kernel ")) return std::nullopt;
    in.skip(collective + "_");
    NcclChoice choice{"Symmetric", in.name(), 0};
    const auto channels = in.skip(" nchannels ") ? in.channel() : std::nullopt;
    if (!channels) return std::nullopt;
    choice.channels = *channels;
    return choice;
  }

  template <class T>
  Found keep_first(T& kept, const T& unknown, const T& said) {
    if (kept == unknown) {
      kept = said;
    } else if (kept != said) {
      ++log_.contradictions;
    }
    return Found::read;
  }

  NcclLog log_;
  std::set<NcclTransport> transports_;
  std::map<std::string, std::vector<std::string>> environment_;
  std::map<int, std::int64_t> ring_lines_;
  std::map<int, std::map<int, int>> next_ranks_;         // by channel and rank
  std::map<int, NcclPlace> places_;                      // by rank
  std::string host_;                                     // that the message begins with
  std::array<std::vector<std::string>, 2> matrix_head_;  // protocols and algorithms
  std::int64_t line_number_ = 0;
  bool line_is_whole_ = true;     // it ended with a line feed
  bool message_is_whole_ = true;  // and no other rank wrote into it
  int ring_channels_ = 0;
  int highest_rank_ = -1;
};

}  // namespace

bool says_nothing(const NcclLog& log) {
  return log.version == "unknown" && log.ranks == 0 && log.channels == 0 && log.environment.empty() &&
         log.choices.empty() && log.graphs.empty() && log.unreadable_lines == 0 && log.network.name.empty();
}

NcclLog read_nccl_log(std::istream& text) {
  Reader reader;
  for (std::string line; std::getline(text, line);) reader.read(line, !text.eof());
  return std::move(reader).result();
}

}  // namespace ddptrain
