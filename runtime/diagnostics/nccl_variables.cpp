#include "runtime/diagnostics/nccl_variables.h"

#include <elf.h>

#include <cstring>
#include <set>
#include <string_view>

#include "runtime/core/mapped_file.h"

namespace ddptrain {
namespace {

/// A struct at `offset` of `file`, zeroed if it does not fit.
template <class T>
T read_at(std::string_view file, std::size_t offset) {
  T value{};
  if (offset <= file.size() && sizeof(T) <= file.size() - offset) std::memcpy(&value, file.data() + offset, sizeof(T));
  return value;
}

std::string_view stretch(std::string_view file, const Elf64_Shdr& section) {
  if (section.sh_type == SHT_NOBITS || section.sh_offset > file.size()) return {};
  return file.substr(section.sh_offset, section.sh_size);
}

/// Empty if there is none.
std::string_view section_named(std::string_view file, std::string_view name) {
  const auto header = read_at<Elf64_Ehdr>(file, 0);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_ident[EI_CLASS] != ELFCLASS64) return {};
  const auto section = [&](std::size_t i) {
    return read_at<Elf64_Shdr>(file, header.e_shoff + i * sizeof(Elf64_Shdr));
  };
  const std::string_view names = stretch(file, section(header.e_shstrndx));
  for (std::size_t i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr found = section(i);
    if (found.sh_name >= names.size()) continue;
    const std::string_view rest = names.substr(found.sh_name);
    if (rest.substr(0, rest.find('\0')) == name) return stretch(file, found);
  }
  return {};
}

}  // namespace

std::vector<std::string> nccl_variables_in(const std::filesystem::path& library) {
  const MappedFile file(library);
  const std::string_view text = section_named({reinterpret_cast<const char*>(file.data()), file.size()}, ".rodata");
  std::set<std::string> names;
  for (std::size_t at = text.find("NCCL_"); at != std::string_view::npos; at = text.find("NCCL_", at + 1)) {
    const std::size_t end = text.find_first_not_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_", at);
    if (end != std::string_view::npos && text[end] == '\0') names.emplace(text.substr(at, end - at));
  }
  return {names.begin(), names.end()};
}

}  // namespace ddptrain
