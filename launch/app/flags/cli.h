#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/core/flags.h"

/// The command lines of all our programs: messages, and the layout of `--help` in lines of up to 100 columns, which do
/// not depend on the version of CLI11.

namespace ddptrain {

/// Adds options to `app` that set these flags. The flags outlive `app` and are not moved.
void add_flags(CLI::App& app, Flags& flags);

/// CLI::App::parse with the messages of all our programs. Names of flags may have underscores in place of hyphens.
/// Requests for help and version pass through as exceptions. UsageError for text that cannot be parsed, for empty paths
/// (types with FILE, DIR, PATH or LOG), and for unknown flags; it names these in their order with the nearest flag of
/// `app`. `help` is the command that lists the flags.
void parse_flags(CLI::App& app, int argc, const char* const* argv, const std::string& help,
                 const ExplainFlag& explain = {});

/// Breaks a text into indented lines.
std::string wrapped(std::string_view text, std::size_t indent);

/// A heading and its flags, each with names, type, default and meaning; empty if there is no flag.
std::string help_group(const std::string& title, const std::vector<const CLI::Option*>& options);

/// The whole help of a program, or of the subcommand that was given. Options without a group are not in it.
std::string help_page(const CLI::App& app);

}  // namespace ddptrain
