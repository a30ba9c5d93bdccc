#pragma once

#include <string>
#include <vector>

namespace ddptrain::bench {

/// Text with columns aligned to the right, one space or more between them. A heading may have several lines (split at
/// '\n'); rows are printed as they come, so widths are fixed: those of the headings, or of `widths` where larger.
class Table {
 public:
  struct Column {
    std::string heading;
    int width = 0;  ///< At least; without the separating space.
  };

  explicit Table(std::vector<Column> columns);

  std::string header() const;  ///< Ends with a line break.
  /// Error where the number of cells is not that of the columns.
  std::string row(const std::vector<std::string>& cells) const;

 private:
  std::vector<Column> columns_;
};

/// A matrix over devices with the heading and form of p2pBandwidthLatencyTest: "   D\D     0      1 \n     0  12.34
/// ...". `corner` is what stands above the row numbers.
std::string device_matrix(const std::string& corner, const std::vector<std::vector<double>>& values);

/// Microseconds as nccl-tests prints them: fewer decimals for larger numbers.
std::string microseconds(double seconds);

}  // namespace ddptrain::bench
