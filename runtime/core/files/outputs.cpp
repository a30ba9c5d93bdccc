#include "runtime/core/files/outputs.h"

#include <glob.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostRead = 4096;  // of a file, to see what it is
constexpr int kMostLinks = 40;

/// The path of the file that a write would reach, also if there is no file yet.
fs::path resolved(fs::path path) {
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(path, error); ++i) {
    const fs::path target = fs::read_symlink(path, error);
    path = target.is_absolute() ? target : path.parent_path() / target;
  }
  const fs::path whole = fs::absolute(path, error);
  const fs::path canonical = fs::weakly_canonical(whole, error);
  return error ? whole.lexically_normal() : canonical;
}

bool is_same(const fs::path& a, const fs::path& b) {
  std::error_code error;
  return resolved(a) == resolved(b) || (fs::equivalent(a, b, error) && !error);
}

/// Whether `path` is the folder or lies in it, or is another name of a file in it.
bool is_in(const fs::path& path, const fs::path& folder) {
  const fs::path whole = resolved(path);
  const fs::path around = resolved(folder);
  const auto [of_folder, of_path] = std::mismatch(around.begin(), around.end(), whole.begin(), whole.end());
  if (of_folder == around.end()) return true;
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(folder, error)) {
    if (is_same(entry.path(), path)) return true;
  }
  return false;
}

std::vector<fs::path> matches(const std::string& pattern) {
  if (pattern.find_first_of("*?[") == std::string::npos) return {pattern};
  std::vector<fs::path> paths = {pattern};
  glob_t found{};
  if (::glob(pattern.c_str(), 0, nullptr, &found) == 0) paths.assign(found.gl_pathv, found.gl_pathv + found.gl_pathc);
  ::globfree(&found);
  return paths;
}

/// Whether the file was written as this output of an earlier run.
bool begins_as(const OutputFile& output) {
  std::string text(kMostRead, '\0');
  std::ifstream file(output.path, std::ios::binary);
  file.seekg(static_cast<std::streamoff>(output.begins_at));
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<std::size_t>(std::max<std::streamsize>(file.gcount(), 0)));
  std::erase_if(text, [](char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; });
  if (text.find(output.contains) == std::string::npos) return false;
  return std::any_of(output.beginnings.begin(), output.beginnings.end(),
                     [&](const std::string& beginning) { return text.starts_with(beginning); });
}

bool is_device(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status) && !fs::is_directory(status);
}

/// Whether there is a file whose content would be lost.
bool has_content(const fs::path& path) {
  std::error_code error;
  return fs::is_regular_file(path, error) && fs::file_size(path, error) > 0;
}

void check_input(const OutputFile& output, const InputPath& input, bool is_own, bool force) {
  std::error_code error;
  if (force && output.may_replace_input) return;
  for (const fs::path& path : matches(input.path)) {
    if (is_same(output.path, path)) {
      usage_error("{} {}: {} reads this file. Give another name.", output.flag, output.path, input.flag);
    }
    const bool is_new = !fs::exists(output.path, error);
    if (fs::is_directory(path, error) && !is_new && !is_own && is_in(output.path, path)) {
      usage_error("{} {}: {} reads the folder of this file. Give another name.", output.flag, output.path, input.flag);
    }
  }
}

}  // namespace

void check_outputs(const std::vector<OutputFile>& outputs, const std::vector<InputPath>& inputs, bool force) {
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const OutputFile& output = outputs[i];
    if (output.path.empty() || is_device(output.path)) continue;
    const bool looks_own = !output.is_foreign && (output.beginnings.empty() || begins_as(output));
    const bool is_own = looks_own || !has_content(output.path);
    for (const InputPath& input : inputs) {
      if (!input.path.empty()) check_input(output, input, is_own, force);
    }
    for (std::size_t other = 0; other < i; ++other) {
      if (outputs[other].path.empty() || !is_same(outputs[other].path, output.path)) continue;
      usage_error("{} {}: {} writes this file, too. Give another name.", output.flag, output.path, outputs[other].flag);
    }
    if (is_own || force) continue;
    usage_error(
        "{} {}: the file exists, and was not written as {} of an earlier run. Give another name, or --force to "
        "overwrite it.",
        output.flag, output.path, output.flag);
  }
}

}  // namespace ddptrain
