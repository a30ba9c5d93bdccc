#pragma once

#include <filesystem>

namespace ddptrain {

/// Files of a Hugging Face model that training does not change: its tokenizer's, and generation_config.json. A model is
/// a folder, or a file of weights in one.

bool has_tokenizer(const std::filesystem::path& model);
/// Copies those that are there; replaces what `folder` has of them. UsageError if that fails.
void copy_tokenizer_files(const std::filesystem::path& model, const std::filesystem::path& folder);

}  // namespace ddptrain
