#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

namespace ddptrain {

/// The names NCCL_* that stand as strings in the read-only data of a program or library, sorted: for an NCCL library,
/// the environment variables that it reads. (NCCL 2.30 to 2.32 list 7 of their 285 in ncclParamGetAllParameterKeys().)
/// Empty if the file is no 64-bit ELF file.
std::vector<std::string> nccl_variables_in(const std::filesystem::path& library);

/// A sentence for each NCCL_* variable of `settings` (name, value) that is not among `known`, with the name that is
/// probably meant. None if nothing is known.
std::vector<std::string> unknown_nccl_settings(const std::map<std::string, std::string>& settings,
                                               const std::vector<std::string>& known, const std::string& nccl_version);

}  // namespace ddptrain
