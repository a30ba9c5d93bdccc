#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <string_view>
#include <vector>

/// The layout of `--help`, in lines of up to 100 columns. It does not depend on the version of CLI11.

namespace ddptrain {

/// Breaks a text into indented lines.
std::string wrapped(std::string_view text, std::size_t indent);

/// The line or lines of a flag: names, type, default and meaning.
std::string help_line(const CLI::Option& option);

/// A heading and its flags; empty if there is no flag.
std::string help_group(const std::string& title, const std::vector<const CLI::Option*>& options);

/// The whole help of a program, or of the subcommand that was given.
std::string help_page(const CLI::App& app);

}  // namespace ddptrain
