#pragma once

#include <string>
#include <vector>

namespace ddptrain::bench {

/// Text with right-aligned columns, separated by at least one space. A heading may have several lines (split at '\n').
/// Rows are printed one by one, so widths are fixed: the width of the heading, or `width` if that is larger.
class Table {
 public:
  struct Column {
    std::string heading;
    int width = 0;  ///< Smallest width, without the separating space.
  };

  explicit Table(std::vector<Column> columns);

  std::string header() const;  ///< Ends with a line break.
  /// Error if the number of cells differs from the number of columns.
  std::string row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

/// A matrix over devices with the heading and form of p2pBandwidthLatencyTest: "   D\D     0      1 \n     0  12.34
/// ...". `corner` is the text above the row numbers.
std::string device_matrix(const std::string& corner, const std::vector<std::vector<double>>& values);

/// Microseconds as nccl-tests prints them: fewer decimals for larger numbers.
std::string microseconds(double seconds);

}  // namespace ddptrain::bench
