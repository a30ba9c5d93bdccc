#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "launch/app/flags/options.h"
#include "models/workload.h"

/// The prompts of --generate and --sample-every.

namespace ddptrain {

using TokenIds = std::vector<std::uint32_t>;

/// The prompts of --prompt or --prompts; none if neither is given. UsageError for a file without prompts.
std::vector<TokenIds> prompts_of(const GenerateOptions& options);

/// The size of the longest prompt.
std::int64_t longest_of(const std::vector<TokenIds>& prompts);

/// For Workload::open(): how long the texts become that begin with these prompts. Without prompts they begin with some
/// tokens of the data: see sampled_prompts().
void set_lengths(RunFacts& facts, const GenerateOptions& options, const std::vector<TokenIds>& prompts);

/// UsageError if the model has no such tokens.
void check_prompts(const std::vector<TokenIds>& prompts, const GenerateOptions& options, std::int64_t vocabulary);

/// The prompts themselves or, without any, the first tokens of the data for validation, as many as leave room for the
/// continuation in a text of `longest_text` tokens. After Workload::load().
std::vector<TokenIds> sampled_prompts(const std::vector<TokenIds>& prompts, const GenerateOptions& options,
                                      const Workload& workload, std::int64_t longest_text);

/// To compare the prompts of all ranks.
std::string hash_of(const std::vector<TokenIds>& prompts);

}  // namespace ddptrain
