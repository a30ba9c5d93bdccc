#include "runtime/diagnostics/nccl_variables.h"

#include <elf.h>
#include <spdlog/fmt/fmt.h>

#include <algorithm>
#include <cstring>
#include <set>
#include <string_view>

#include "runtime/core/files/mapped_file.h"
#include "runtime/core/text.h"

namespace ddptrain {
namespace {

/// `count` structs at `offset` of `file`; none if they do not fit.
template <class T>
std::vector<T> read_at(std::string_view file, std::size_t offset, std::size_t count) {
  if (offset > file.size() || count > (file.size() - offset) / sizeof(T)) return {};
  std::vector<T> values(count);
  std::memcpy(values.data(), file.data() + offset, count * sizeof(T));
  return values;
}

std::string_view stretch(std::string_view file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > file.size()) return {};
  return file.substr(section.sh_offset, section.sh_size);
}

/// Empty if there is none.
std::string_view section_named(std::string_view file, std::string_view name) {
  if (!file.starts_with(ELFMAG) || file.size() < sizeof(Elf64_Ehdr) || file[EI_CLASS] != ELFCLASS64) return {};
  const auto header = read_at<Elf64_Ehdr>(file, 0, 1).front();
  const auto sections = read_at<Elf64_Shdr>(file, header.e_shoff, header.e_shnum);
  if (header.e_shstrndx >= sections.size()) return {};
  const std::string_view names = stretch(file, sections[header.e_shstrndx]);
  for (const Elf64_Shdr& section : sections) {
    if (section.sh_name >= names.size()) continue;
    const std::string_view rest = names.substr(section.sh_name);
    if (rest.substr(0, rest.find('\0')) == name) return stretch(file, section);
  }
  return {};
}

}  // namespace

std::vector<std::string> nccl_variables_in(const std::filesystem::path& library) {
  const MappedFile file(library);
  const std::string_view text = section_named(file.text(), ".rodata");
  std::set<std::string> names;
  for (std::size_t at = text.find("NCCL_"); at != std::string_view::npos; at = text.find("NCCL_", at + 1)) {
    const std::size_t end = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", at);
    if (end != std::string_view::npos && text[end] == '\0') names.emplace(text.substr(at, end - at));
  }
  return {names.begin(), names.end()};
}

std::vector<std::string> unknown_nccl_settings(const std::map<std::string, std::string>& settings,
                                               const std::vector<std::string>& known, const std::string& nccl_version) {
  std::vector<std::string> lines;
  if (known.empty()) return lines;
  for (const auto& [name, value] : settings) {
    if (std::ranges::find(known, name) != known.end()) continue;
    const std::string meant = nearest(name, known);
    lines.push_back(fmt::format("NCCL {} does not read {}{}", nccl_version, name,
                                meant.empty() ? " (a plugin may)" : ", did you mean " + meant + "?"));
  }
  return lines;
}

}  // namespace ddptrain
