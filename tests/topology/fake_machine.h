#pragma once

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/topology/sysfs.h"

namespace ddptrain {

/// A tree of files in the form of sysfs and procfs, removed at the end.
class FakeMachine {
 public:
  explicit FakeMachine(bool virtual_machine = false) {
    std::filesystem::remove_all(root_);
    write("proc/cpuinfo", std::string("processor : 0\nmodel name\t: Test CPU\nflags\t\t: fpu sse2") +
                              (virtual_machine ? " hypervisor" : "") + "\n");
  }
  ~FakeMachine() { std::filesystem::remove_all(root_); }
  FakeMachine(const FakeMachine&) = delete;
  FakeMachine& operator=(const FakeMachine&) = delete;

  SystemFiles files() const { return {root_ / "sys", root_ / "proc"}; }

  void write(const std::string& path, const std::string& text) const {
    std::filesystem::create_directories((root_ / path).parent_path());
    std::ofstream(root_ / path) << text;
  }

  void cpu(int index, int package, int node) const {
    write("sys/devices/system/cpu/cpu" + std::to_string(index) + "/topology/physical_package_id",
          std::to_string(package) + "\n");
    const std::string cpu = "/cpu" + std::to_string(index);
    write("sys/devices/system/node/node" + std::to_string(node) + "/cpulist", std::to_string(index) + "\n");
    link("sys/devices/system/cpu" + cpu, "sys/devices/system/node/node" + std::to_string(node) + cpu);
  }

  /// `path`: from pci0000:00 to the device.
  void pci_device(const std::string& path, int numa_node, const std::string& cpus = "0-3") const {
    const std::string device = "sys/devices/" + path;
    write(device + "/numa_node", std::to_string(numa_node) + "\n");
    write(device + "/local_cpulist", cpus + "\n");
    link(device, "sys/bus/pci/devices/" + std::filesystem::path(path).filename().string());
  }

  /// A device of a class (net, infiniband), a child of the folder at `parent` below devices/.
  void class_device(const std::string& name, const std::string& kind, const std::string& parent) const {
    const std::string folder = "sys/devices/" + parent + "/" + kind + "/" + name;
    std::filesystem::create_directories(root_ / folder);
    link("sys/devices/" + parent, folder + "/device");
    link(folder, "sys/class/" + kind + "/" + name);
  }

 private:
  void link(const std::string& target, const std::string& name) const {
    std::filesystem::create_directories((root_ / name).parent_path());
    std::filesystem::create_symlink(root_ / target, root_ / name);
  }

  std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("ddptrain_fake_machine." + std::to_string(getpid()));
};

}  // namespace ddptrain
