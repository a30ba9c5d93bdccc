#include "benchmarks/ddpbench/table.h"

#include <algorithm>
#include <sstream>
#include <utility>

#include "runtime/core/error.h"

namespace ddptrain::bench {
namespace {

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

}  // namespace

Table::Table(std::vector<Column> columns) : columns_(std::move(columns)) {
  for (Column& column : columns_) {
    for (const std::string& line : lines_of(column.heading)) {
      column.width = std::max(column.width, static_cast<int>(line.size()));
    }
  }
}

std::string Table::header() const {
  std::size_t height = 0;
  for (const Column& column : columns_) height = std::max(height, lines_of(column.heading).size());
  std::string text;
  for (std::size_t i = 0; i < height; ++i) {
    std::vector<std::string> cells;
    for (const Column& column : columns_) {
      const auto lines = lines_of(column.heading);
      cells.push_back(i < lines.size() ? lines[i] : "");
    }
    text += row(cells);
  }
  return text;
}

std::string Table::row(const std::vector<std::string>& cells) const {
  DDP_CHECK(cells.size() == columns_.size(), "{} cells in a table of {} columns", cells.size(), columns_.size());
  std::string text;
  for (std::size_t i = 0; i < cells.size(); ++i) text += fmt::format(" {:>{}}", cells[i], columns_[i].width);
  text.erase(text.find_last_not_of(' ') + 1);
  return text + "\n";
}

std::string device_matrix(const std::string& corner, const std::vector<std::vector<double>>& values) {
  std::string text = fmt::format("{:>6}", corner);
  for (std::size_t i = 0; i < values.size(); ++i) text += fmt::format(" {:>6}", i);
  text += "\n";
  for (std::size_t i = 0; i < values.size(); ++i) {
    text += fmt::format("{:>6}", i);
    for (const double value : values[i]) text += fmt::format(" {:>6.2f}", value);
    text += "\n";
  }
  return text;
}

std::string microseconds(double seconds) {
  const double us = 1e6 * seconds;
  return fmt::format("{:.{}f}", us, us >= 10000.0 ? 0 : us >= 100.0 ? 1 : 2);
}

}  // namespace ddptrain::bench
