#include "runtime/topology/nccl_network.h"

#include <algorithm>
#include <sstream>

#include "runtime/topology/sysfs.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

/// "^=mlx5_3:1,mlx5_4": names with or without ports.
class Choice {
 public:
  explicit Choice(std::string text) {
    if (text.rfind('^', 0) == 0) {
      inverted_ = true;
      text.erase(0, 1);
    }
    if (text.rfind('=', 0) == 0) {
      exact_ = true;
      text.erase(0, 1);
    }
    std::istringstream list(text);
    for (std::string entry; std::getline(list, entry, ',');) {
      if (!entry.empty()) entries_.push_back(entry);
    }
  }

  bool takes(const std::string& name, const std::string& port = "") const {
    if (entries_.empty()) return true;
    const bool named = std::any_of(entries_.begin(), entries_.end(), [&](const std::string& entry) {
      const std::size_t colon = entry.find(':');
      const std::string part = entry.substr(0, colon);
      const bool same_port = colon == std::string::npos || port.empty() || entry.substr(colon + 1) == port;
      return same_port && (exact_ ? name == part : name.rfind(part, 0) == 0);
    });
    return named != inverted_;
  }

 private:
  bool inverted_ = false;
  bool exact_ = false;
  std::vector<std::string> entries_;
};

std::vector<std::string> taken(const std::vector<std::string>& interfaces, const std::string& chosen) {
  const Choice choice(chosen);
  std::vector<std::string> names;
  std::copy_if(interfaces.begin(), interfaces.end(), std::back_inserter(names),
               [&](const std::string& name) { return choice.takes(name); });
  return names;
}

}  // namespace

std::vector<std::string> nccl_interfaces(const std::vector<std::string>& interfaces, const std::string& chosen) {
  if (!chosen.empty()) return taken(interfaces, chosen);
  for (const char* kind : {"ib", "^docker,lo,virbr", "docker", "lo", "virbr"}) {
    if (auto names = taken(interfaces, kind); !names.empty()) return names;
  }
  return {};
}

std::vector<std::string> nccl_hcas(const std::string& chosen, const fs::path& sysfs) {
  const Choice choice(chosen);
  std::vector<std::string> ports;
  for (const fs::path& device : sorted_entries(sysfs / "class/infiniband")) {
    for (const fs::path& port : sorted_entries(device / "ports")) {
      const std::string name = device.filename().string();
      const std::string number = port.filename().string();
      const bool active = first_line(port / "state").rfind("4:", 0) == 0;
      if (active && choice.takes(name, number)) ports.push_back(name + ":" + number);
    }
  }
  return ports;
}

}  // namespace ddptrain
