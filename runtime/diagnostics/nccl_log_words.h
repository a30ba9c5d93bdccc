#pragma once

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <string_view>

/// The words of NCCL's log lines, for nccl_log_parser.cpp.

namespace ddptrain {

constexpr int kMostNcclChannels = 1024;
constexpr int kMostNcclRanks = 1'000'000;

/// Reads a text from its start. What does not match is not consumed.
class NcclScanner {
 public:
  explicit NcclScanner(std::string_view text) : rest_(text) {}

  bool skip(std::string_view literal) {
    if (rest_.substr(0, literal.size()) != literal) return false;
    rest_.remove_prefix(literal.size());
    return true;
  }

  void skip_spaces() { rest_.remove_prefix(std::min(rest_.find_first_not_of(' '), rest_.size())); }

  /// Goes to just behind the next `literal`.
  bool skip_past(std::string_view literal) {
    const auto at = rest_.find(literal);
    if (at == std::string_view::npos) return false;
    rest_.remove_prefix(at + literal.size());
    return true;
  }

  template <class T>
  std::optional<T> number() {
    T value{};
    const auto [end, error] = std::from_chars(rest_.data(), rest_.data() + rest_.size(), value);
    if (error != std::errc{}) return std::nullopt;
    rest_.remove_prefix(static_cast<std::size_t>(end - rest_.data()));
    return value;
  }

  std::optional<int> number_up_to(int most) {
    const auto value = number<int>();
    return value && *value >= 0 && *value <= most ? value : std::nullopt;
  }

  std::optional<int> rank() { return number_up_to(kMostNcclRanks - 1); }
  std::optional<int> channel() { return number_up_to(kMostNcclChannels - 1); }

  std::string name();     ///< Letters, digits, _ and -.
  std::string network();  ///< The same with spaces, as in AWS Libfabric.
  std::string word();     ///< Up to a space.

  bool at_end() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

 private:
  std::string taken_while(bool (*belongs)(char));

  std::string_view rest_;
};

/// One name for what older versions write as numbers, and newer ones in capitals.
std::string nccl_algorithm_name(const std::string& raw);
std::string nccl_protocol_name(const std::string& raw);
std::string nccl_pattern_name(int number);

/// What stands before a message as host:process:thread [device]; empty where it is another form.
std::string nccl_host_of(std::string_view prefix);

/// What stands behind " via ", without what another rank wrote into the same line. Nothing for forms that are unknown.
std::optional<std::string> read_nccl_via(NcclScanner& in);

/// A rank with its device in brackets, as in 1[1c000].
std::optional<int> read_nccl_peer(NcclScanner& in);

}  // namespace ddptrain
