#include "runtime/diagnostics/nccl_log.h"

#include <strings.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <istream>
#include <regex>
#include <set>
#include <string_view>
#include <vector>

namespace ddptrain {

namespace {

/// One of `names` by its number or, in capitals, itself; other words stay.
std::string name_in(const std::vector<const char*>& names, const std::string& word) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    if (word == std::to_string(i) || strcasecmp(word.c_str(), names[i]) == 0) return names[i];
  }
  return word;
}

}  // namespace

class NcclLogReader::Reader {
 public:
  /// Other programs' words come before and between the messages of NCCL, which several ranks may write into one line.
  void read(const std::string& line) {
    constexpr std::string_view kMark = "NCCL INFO ";
    std::size_t at = line.find(kMark);
    if (at == std::string::npos) {
      read_bare_version(line);
      return;
    }
    for (std::size_t begin = 0; at != std::string::npos;) {
      process_ = &process_of(std::string_view(line).substr(begin, at - begin));
      begin = at + kMark.size();
      at = line.find(kMark, begin);
      read_message(line.substr(begin, at == std::string::npos ? at : at - begin));
    }
  }

  NcclLog log() const {
    NcclLog log = log_;
    log.connections = connections_.empty() ? settled_doubtful() : connections_;
    return log;
  }

 private:
  using Match = std::smatch;

  /// One that writes into the log. A communicator has an address for each of its GPUs in the process.
  struct Process {
    std::set<std::string> members;  ///< Addresses of the first communicator.
    std::set<std::string> others;   ///< Addresses of later communicators.

    bool is_elsewhere() const { return members.empty() && !others.empty(); }
    bool is_in_several() const { return !members.empty() && !others.empty(); }
  };

  /// By host and process id, which come before the thread id and the GPU: "host:17:18 [0] ".
  Process& process_of(std::string_view before) {
    static const std::regex form(R"(([A-Za-z0-9_.-]*:\d+):\d+ \[[^\]]*\] *$)");
    std::match_results<std::string_view::const_iterator> found;
    constexpr std::size_t kLongest = 300;  // the search is slow in long text
    before.remove_prefix(before.size() - std::min(before.size(), kLongest));
    return processes_[std::regex_search(before.begin(), before.end(), found, form) ? found[1].str() : ""];
  }

  /// Without NCCL's mark, but perhaps with that of a launcher ("[1,0]<stdout>:"). Not the words of a sentence.
  void read_bare_version(const std::string& line) {
    static const std::string kWords = "NCCL version ";
    const std::size_t at = line.find(kWords);
    if (at == std::string::npos) return;
    const std::size_t last = at == 0 ? std::string::npos : line.find_last_not_of(' ', at - 1);
    if (last == std::string::npos || std::isalnum(static_cast<unsigned char>(line[last])) == 0) {
      read_version(line.substr(at));
    }
  }

  void read_version(const std::string& text) {
    static const std::regex form(R"( *NCCL version (\d{1,5}\.\d{1,5}\.\d{1,5}))");
    Match found;
    if (matches(text, form, found) && log_.version == "unknown") log_.version = found[1];
  }

  static bool matches(const std::string& text, const std::regex& form, Match& found) {
    return std::regex_search(text, found, form, std::regex_constants::match_continuous);
  }

  /// Algorithms and protocols are numbers in older versions, capitals in newer ones.
  void read_message(const std::string& text) {
    static const std::vector algorithms = {"Tree", "Ring", "CollNetDirect", "CollNetChain", "NVLS", "NVLSTree", "PAT"};
    static const std::vector protocols = {"LL", "LL128", "Simple"};
    static const std::regex communicator(R"( *(?:\[Rank \d{1,6}\] *)?(?:nccl\w+ +)?comm (0x[0-9a-fA-F]{1,16}) )"
                                         R"(rank (\d{1,6}) n[rR]anks (\d{1,6})\b)");
    static const std::regex channels(R"( *(\d{1,4}) coll channels)");
    static const std::regex connection(
        R"( *(Channel \d{1,4}\S* *: (\d{1,6})\S* -> (\d{1,6})\S*|Coll(?:Net)? \d{1,4}\S* : \d{1,6}(?: \[\w+\])?))"
        R"(.*? via (P2P/(?:direct pointer|CUMEM|MNNVL|IPC|indirect)|SHM|direct shared memory|(?:COLL)?NET/[\w -]*))");
    static const std::regex kernel(
        R"( *([\w-]+) \[Symmetric\]: (\d{1,18}) Bytes -> Kernel (?:\1_)?(\w+) nchannels (\d{1,4}))");
    static const std::regex algorithm(R"( *(?:([\w-]+): )?(\d{1,18}) Bytes -> Algo (\w+) proto (\w+))"
                                      R"((?: time | channel\{Lo\.\.Hi\}=\{(\d{1,4})\.\.(\d{1,4})\}))");
    Match found;
    const auto number = [&](std::size_t group) { return std::stoi(found[group]); };
    read_version(text);
    if (matches(text, communicator, found)) {
      join(found[1], number(2), number(3), id_in(text));
    } else if (matches(text, channels, found)) {
      if (process_->others.empty()) log_.channels = std::max(log_.channels, number(1));
    } else if (matches(text, connection, found)) {
      const std::string transport = found[4] == "direct shared memory" ? "SHM" : found[4].str();
      add_connection(found[1], found[2].matched ? std::max(number(2), number(3)) : 0, transport);
    } else if (matches(text, kernel, found)) {
      log_.choices.try_emplace({found[1], std::stoll(found[2])}, NcclChoice{"Symmetric", found[3], number(4)});
    } else if (matches(text, algorithm, found)) {
      const int count = found[6].matched ? std::max(number(6) - number(5) + 1, 0) : 0;
      log_.choices.try_emplace({found[1], std::stoll(found[2])},
                               NcclChoice{name_in(algorithms, found[3]), name_in(protocols, found[4]), count});
    }
  }

  static std::string id_in(const std::string& text) {
    static const std::regex form(" commId (0x[0-9a-fA-F]{1,16})");
    Match found;
    return std::regex_search(text, found, form) ? found[1].str() : "";
  }

  /// The process has this communicator. It is the first one if it has the same id and size, and this rank is a new one.
  void join(const std::string& address, int rank, int ranks, const std::string& id) {
    if (ranks == 0) return;
    if (log_.ranks == 0) log_.ranks = ranks;
    if (process_->members.count(address) == 0 && process_->others.count(address) == 0) {
      const bool same_id = id.empty() || id_.empty() || id == id_;
      const bool is_first = same_id && ranks == log_.ranks && ranks_.count(rank) == 0;
      (is_first ? process_->members : process_->others).insert(address);
    }
    if (process_->members.count(address) == 0) return;
    ranks_.insert(rank);
    if (id_.empty()) id_ = id;
  }

  void add_connection(const std::string& channel, int highest_rank, const std::string& transport) {
    if (process_->is_elsewhere()) return;
    if (!process_->is_in_several()) {
      connections_.try_emplace(channel, transport);
    } else if (log_.ranks == 0 || highest_rank < log_.ranks) {
      doubtful_[channel].insert(transport);
    }
  }

  /// Lines of processes with several communicators count if they name one transport for a connection, and if no process
  /// tells of the first communicator alone.
  std::map<std::string, std::string> settled_doubtful() const {
    std::map<std::string, std::string> settled;
    for (const auto& [channel, transports] : doubtful_) {
      if (transports.size() == 1) settled[channel] = *transports.begin();
    }
    return settled;
  }

  NcclLog log_;
  std::map<std::string, std::string> connections_;
  std::map<std::string, std::set<std::string>> doubtful_;
  std::map<std::string, Process> processes_;
  Process* process_ = &processes_[""];  ///< With which the message begins.
  std::string id_;                      ///< Of the first communicator.
  std::set<int> ranks_;                 ///< Those of the first communicator that have been seen.
};

namespace {

/// Most frequent first.
std::string transports_of(const NcclLog& log) {
  std::map<std::string, int> counts;
  for (const auto& [channel, transport] : log.connections) ++counts[transport];
  std::vector<std::pair<std::string, int>> sorted(counts.begin(), counts.end());
  std::stable_sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) { return a.second > b.second; });
  std::string text;
  for (const auto& [name, count] : sorted) text += (text.empty() ? "" : "+") + name;
  return text.empty() ? "unknown" : text;
}

}  // namespace

NcclLogReader::NcclLogReader() : reader_(std::make_unique<Reader>()) {}
NcclLogReader::~NcclLogReader() = default;
void NcclLogReader::read(const std::string& line) {
  constexpr std::size_t kLongest = 10'000;  // NCCL's have at most 1,024 bytes
  reader_->read(line.size() > kLongest ? line.substr(0, kLongest) : line);
}
NcclLog NcclLogReader::log() const { return reader_->log(); }

NcclLog read_nccl_log(std::istream& text) {
  NcclLogReader reader;
  for (std::string line; std::getline(text, line) && !text.eof();) reader.read(line);
  return reader.log();
}

NcclUsage usage_of(const NcclLog& log) {
  NcclUsage usage;
  usage.version = log.version;
  usage.transport = transports_of(log);
  usage.channels = log.channels;
  for (const auto& [key, choice] : log.choices) {  // sorted by bytes within a collective: the largest comes last
    if (key.first != "AllReduce" && !key.first.empty()) continue;
    usage.algorithm = choice.algorithm;
    usage.protocol = choice.protocol;
    usage.channels = choice.channels > 0 ? choice.channels : log.channels;
  }
  return usage;
}

std::map<std::string, std::string> nccl_environment() {
  constexpr std::string_view kLabel = "NCCL_VERSION=";  // of NVIDIA's container images; NCCL does not read it
  std::map<std::string, std::string> variables;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string text = *entry;
    const auto equals = text.find('=');
    if (text.starts_with("NCCL_") && !text.starts_with(kLabel) && equals != std::string::npos) {
      variables.emplace(text.substr(0, equals), text.substr(equals + 1));
    }
  }
  return variables;
}

}  // namespace ddptrain
