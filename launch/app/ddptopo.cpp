// Shows how the GPUs, NICs and processors of the hosts of a job are joined, and what NCCL makes of it.

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "launch/app/flags/cli.h"
#include "launch/app/job/choose_device.h"
#include "launch/app/job/program.h"
#include "launch/app/topology_scripts.h"
#include "runtime/comm/world.h"
#include "runtime/core/error.h"
#include "runtime/core/files/atomic_file.h"
#include "runtime/core/files/descriptor.h"
#include "runtime/core/files/outputs.h"
#include "runtime/core/files/writable.h"
#include "runtime/core/log.h"
#include "runtime/core/text.h"
#include "runtime/device/device.h"
#include "runtime/diagnostics/nccl_log.h"
#include "runtime/diagnostics/nccl_probe.h"
#include "runtime/topology/machine.h"

using namespace ddptrain;
using nlohmann::json;

namespace {

constexpr const char* kHowToLog = "NCCL_DEBUG=INFO and NCCL_DEBUG_SUBSYS=INIT,ENV,GRAPH,TUNING,NET";

struct Options {
  bool nccl = false;
  bool share_gpu = false;
  std::vector<std::string> logs;  ///< Of --parse: files, folders, or - for the standard input.
  std::string json;
  std::string svg;
  std::string png;
  bool force = false;
  std::optional<std::string> print;  ///< To print and end: help, version.
};

/// Tables and their JSON; on rank 0.
struct Findings {
  std::string text;
  json all = {{"hosts", json::array()}, {"nccl", nullptr}};
};

Options parse_command_line(int argc, const char* const* argv) {
  Options options;
  CLI::App app{"Shows how GPUs, NICs and processors are connected. For several hosts: mpirun -np W ddptopo", "ddptopo"};
  app.add_flag("--nccl", options.nccl,
               "Start NCCL with a rank per GPU, and show its rings, trees, transports and settings without effect");
  app.add_flag("--share-gpu", options.share_gpu, "With --nccl: allow more ranks than GPUs");
  app.add_option("--parse", options.logs,
                 "Show the same from logs that NCCL wrote with NCCL_DEBUG=INFO, read together: files, folders (of "
                 "NCCL_DEBUG_FILE=DIR/%h.%p), or - for the standard input")
      ->type_name("LOG|DIR|- ...")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll);
  app.add_option("--json", options.json, "Write everything as JSON; -: to standard output, without tables")
      ->type_name("FILE|-");
  app.add_option("--svg", options.svg, "Draw rings and trees as SVG (needs matplotlib)")->type_name("FILE");
  app.add_option("--png", options.png, "Draw the same as PNG")->type_name("FILE");
  app.add_flag("--force", options.force, "Overwrite files that no ddptopo wrote");
  bool version = false;
  app.add_flag("--version", version, "Print the version");
  try {
    parse_flags(app, argc, argv, "ddptopo --help lists");
  } catch (const CLI::CallForHelp&) {
    options.print = help_page(app);
    return options;
  }
  if (version) options.print = "ddptopo " DDPTRAIN_VERSION "\n";
  if (options.nccl && !options.logs.empty()) usage_error("--nccl and --parse: give one of them");
  return options;
}

/// The GPUs that this process sees, as CUDA numbers them, else as the driver does; then those of `ranks` that it does
/// not see, because a launcher shows each rank its own only.
DriverFacts find_gpus(const std::vector<RankOfGpu>& ranks) {
  const int count = cuda_device_count();
  std::vector<std::string> ids;
  for (int gpu = 0; gpu < count; ++gpu) ids.push_back(cuda_pci_bus_id(gpu));
  for (const RankOfGpu& rank : ranks) {
    if (std::find(ids.begin(), ids.end(), rank.pci) == ids.end()) ids.push_back(rank.pci);
  }
  DriverFacts facts = driver_facts(ids);
  facts.p2p.assign(facts.gpus.size(), std::vector<std::optional<bool>>(facts.gpus.size()));
  for (int i = 0; i < count; ++i) {
    for (int j = 0; j < count; ++j) {
      facts.p2p[static_cast<std::size_t>(i)][static_cast<std::size_t>(j)] = i == j || cuda_can_access_peer(i, j);
    }
  }
  return facts;
}

/// The ranks of this host that have a GPU of their own.
std::vector<RankOfGpu> ranks_of_gpus(const World& world) {
  const int gpu = own_gpu(world);
  auto ranks = ranks_of_this_host(world, gpu < cuda_device_count() ? cuda_pci_bus_id(gpu) : "");
  std::erase_if(ranks, [](const RankOfGpu& rank) { return rank.pci.empty(); });
  return ranks;
}

Findings find_hosts(const World& world) {
  std::string text;
  std::string description;
  const std::vector<RankOfGpu> ranks = ranks_of_gpus(world);
  world.agree([&] {
    if (world.local_rank() != 0) return;
    const Machine machine = describe_machine(world.hostname(), find_gpus(ranks));
    text = machine_text(machine);
    json all = machine_json(machine);
    all["warnings"] = world.nodes() > 1 ? shared_nic_warnings(world.hostname(), ranks) : std::vector<std::string>{};
    for (const json& line : all["warnings"]) text += fmt::format("Warning: {}\n", line.get<std::string>());
    description = all.dump(-1, ' ', false, json::error_handler_t::replace);
  });
  const auto texts = world.all_gather(text);
  const auto descriptions = world.all_gather(description);
  Findings findings;
  if (world.nodes() > 1) findings.text = fmt::format("{} hosts, {} ranks\n", world.nodes(), world.size());
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    if (descriptions[rank].empty()) continue;
    if (!findings.text.empty()) findings.text += '\n';
    findings.text += texts[rank];
    findings.all["hosts"].push_back(json::parse(descriptions[rank]));
  }
  return findings;
}

bool joined_by_nvlink(const json& hosts) {
  for (const json& host : hosts) {
    const std::size_t gpus = host.at("gpus").size();
    for (std::size_t i = 0; i < gpus; ++i) {
      for (std::size_t j = 0; j < gpus; ++j) {
        if (i != j && host.at("links").at(i).at(j).get<std::string>().rfind("NV", 0) != 0) return false;
      }
    }
  }
  return !hosts.empty();
}

void add_nccl(Findings& findings, const json& report) {
  if (!findings.text.empty()) findings.text += '\n';
  findings.text += report.at("text").get<std::string>();
  findings.all["nccl"] = report.at("nccl");
}

/// use_gpus() then finds out whether they are enough.
void check_gpus(const World& world) {
  if (!built_with_cuda()) {
    usage_error("--nccl: this program was built without CUDA. Configure with -DDDPTRAIN_CUDA=ON and build again.");
  }
  if (cuda_device_count() == 0) usage_error("--nccl: no GPU is visible on {}", world.hostname());
}

void probe(const World& world, bool share, Findings& findings) {
  world.agree([&] { check_gpus(world); });
  DeviceOptions device_options;
  device_options.ranks = use_gpus(world, cuda_pci_bus_id(own_gpu(world)), share).ranks_per_gpu;
  NcclJob job{nccl_environment(), {}, joined_by_nvlink(findings.all.at("hosts"))};
  for (const char* ours : {"NCCL_TOPO_DUMP_FILE", "NCCL_GRAPH_DUMP_FILE"}) {
    if (job.environment.count(ours) == 0) job.unmentioned.emplace_back(ours);
  }
  std::unique_ptr<Device> device;
  world.agree([&] { device = make_cuda_device(device_options, own_gpu(world)); });
  const NcclProbe probe = probe_nccl(world, *device);
  world.agree([&] {
    if (world.rank() != 0) return;
    add_nccl(findings, report_nccl_log(probe.log, job));
    findings.all["nccl"]["topology_xml"] = probe.topology_xml;
    findings.all["nccl"]["graph_xml"] = probe.graph_xml;
  });
}

/// What programs write into a pipe until they close it. UsageError if none has opened it.
std::string content_of_pipe(const std::string& path) {
  constexpr int kMilliseconds = 2000;  // in which a writer that waits for its reader has opened the pipe
  const Descriptor pipe(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  pollfd state{pipe.get(), POLLIN, 0};
  poll(&state, 1, kMilliseconds);
  std::string text;
  std::array<char, 4096> piece;
  for (;;) {
    const ssize_t got = read(pipe.get(), piece.data(), piece.size());
    if (got > 0) {
      text.append(piece.data(), static_cast<std::size_t>(got));
    } else if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      poll(&state, 1, -1);
    } else if (got < 0) {
      usage_error("--parse {}: the pipe cannot be read: {}", printable(path), std::generic_category().message(errno));
    } else {
      break;
    }
  }
  if (text.empty()) usage_error("--parse {}: no program writes into this pipe", printable(path));
  return text;
}

std::string content_of(const std::string& path) {
  if (path == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  std::error_code ignored;
  if (std::filesystem::is_fifo(path, ignored)) return content_of_pipe(path);
  std::ifstream file(path);
  if (file) file.peek();
  if (!file && !file.eof()) {
    usage_error("--parse {}: the log cannot be read: {}", printable(path), std::generic_category().message(errno));
  }
  file.clear();
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The files of a folder that are text and have lines of NCCL, in the order of their names.
std::vector<std::string> logs_in(const std::string& folder) {
  std::vector<std::string> logs;
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
    std::error_code unknown;
    if (!entry.is_regular_file(unknown)) continue;
    std::ifstream file(entry.path());
    std::string start(4096, ' ');
    file.read(start.data(), static_cast<std::streamsize>(start.size()));
    start.resize(static_cast<std::size_t>(file.gcount()));
    if (start.find('\0') != std::string::npos) continue;
    const std::string text = content_of(entry.path().string());
    if (text.find("NCCL ") != std::string::npos) logs.push_back(entry.path().string());
  }
  if (error) usage_error("--parse {}: the folder cannot be read: {}", printable(folder), error.message());
  if (logs.empty()) {
    usage_error("--parse {}: no file of this folder is a log of NCCL. NCCL writes them with {}.", printable(folder),
                kHowToLog);
  }
  std::sort(logs.begin(), logs.end());
  return logs;
}

/// The lines of all logs. A last line without a line feed may be cut, so it does not continue in the next log.
std::string joined_logs(const std::vector<std::string>& given) {
  std::vector<std::string> paths;
  for (const std::string& path : given) {
    std::error_code error;
    const bool is_folder = path != "-" && std::filesystem::is_directory(path, error);
    const std::vector<std::string> logs = is_folder ? logs_in(path) : std::vector{path};
    paths.insert(paths.end(), logs.begin(), logs.end());
  }
  std::string lines, cut;
  for (const std::string& path : paths) {
    const std::string text = content_of(path);
    const std::size_t end = text.rfind('\n') + 1;  // 0 without a line feed
    lines += text.substr(0, end);
    cut += text.substr(end);
  }
  return lines + cut;
}

Findings parse_logs(const std::vector<std::string>& paths) {
  const json report = report_nccl_log(joined_logs(paths), {});
  if (!report.at("found").get<bool>()) {
    usage_error("--parse {}: nothing of NCCL is in {}. NCCL writes it with {}.",
                printable(fmt::format("{}", fmt::join(paths, " "))), paths.size() == 1 ? "this log" : "these logs",
                kHowToLog);
  }
  Findings findings;
  add_nccl(findings, report);
  return findings;
}

void check_files(const Options& options) {
  std::vector<InputPath> logs;
  for (const std::string& log : options.logs) logs.push_back({"--parse", log == "-" ? "" : log});
  const std::vector<std::string> own = {R"({"hosts":[{"all_pairs_equal":)", R"({"hosts":[],"nccl":{"channels":)"};
  check_outputs({{"--json", options.json == "-" ? "" : options.json, own},
                 {"--svg", options.svg, {"<?xml", "\x89PNG"}, "ddptrain"},
                 {"--png", options.png, {"<?xml", "\x89PNG"}, "ddptrain"}},
                logs, options.force);
}

void show(const Options& options, const Findings& findings) {
  const std::string text = findings.all.dump(2, ' ', false, json::error_handler_t::replace) + "\n";
  std::fputs(options.json == "-" ? text.c_str() : findings.text.c_str(), stdout);
  if (!options.json.empty() && options.json != "-") {
    const Descriptor pipe = require_writable("--json", options.json);
    write_file(options.json, text);
  }
  if (!options.svg.empty() || !options.png.empty()) draw_topology(text, options.svg, options.png);
}

void run(const World& world, const Options& options) {
  if (options.print) {
    if (world.rank() == 0) std::fputs(options.print->c_str(), stdout);
    return;
  }
  init_logging("warn", world.rank());
  world.agree([&] {
    if (world.rank() == 0) check_files(options);
  });
  Findings findings;
  if (options.logs.empty()) {
    findings = find_hosts(world);
    if (options.nccl) probe(world, options.share_gpu, findings);
  }
  world.agree([&] {
    if (world.rank() != 0) return;
    if (!options.logs.empty()) findings = parse_logs(options.logs);
    show(options, findings);
  });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  const auto prepare = [&] {
    options = parse_command_line(argc, argv);
    if (options.share_gpu) let_ranks_share_gpus();
  };
  const auto work = [&](const World& world) { run(world, options); };
  const auto needs_ranks = [&] { return !options.print && options.nccl; };
  return run_program("ddptopo", &argc, &argv, prepare, work, std::make_shared<Watch>(), needs_ranks);
}
