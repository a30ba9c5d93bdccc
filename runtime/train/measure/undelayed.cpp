#include "runtime/train/measure/undelayed.h"

#include <algorithm>
#include <limits>

#include "runtime/core/error.h"

namespace ddptrain {
namespace {

constexpr double kUndelayed = 0.01;  // waits for a core in a piece, relative to its length

PieceEnd piece_of(const Pieces& pieces, std::size_t index) {
  const PieceEnd& end = pieces[index];
  const PieceEnd begin = index > 0 ? pieces[index - 1] : PieceEnd{};
  return {end.steps - begin.steps, end.seconds - begin.seconds, end.waited - begin.waited};
}

/// The window as seen by all ranks.
class Window {
 public:
  Window(const std::vector<Pieces>& ranks, const std::vector<double>& by_itself, Meeting meeting)
      : ranks_(ranks), by_itself_(by_itself), meeting_(meeting), slowest_(std::ranges::max(by_itself)) {}

  std::size_t pieces() const { return ranks_.front().size(); }
  std::uint64_t steps_of(std::size_t piece) const { return piece_of(ranks_.front(), piece).steps; }
  double seconds(std::size_t piece) const { return end_of(piece) - (piece > 0 ? end_of(piece - 1) : 0.0); }

  bool is_undisturbed(std::size_t piece) const {
    double waited = 0.0;
    for (const Pieces& rank : ranks_) waited += piece_of(rank, piece).waited;
    return waited <= kUndelayed * seconds(piece);
  }

  double undelayed(std::size_t piece) const {
    if (meeting_ == Meeting::later || steps_of(piece) > 1) return seconds_of_least_waiting(piece);
    return piece > 0 ? seconds_of_last(piece) : seconds_from_common_start();
  }

 private:
  double end_of(std::size_t piece) const {
    double end = 0.0;
    for (const Pieces& rank : ranks_) end = std::max(end, rank[piece].seconds);
    return end;
  }

  double own_seconds(std::size_t rank, std::size_t piece) const {
    const PieceEnd own = piece_of(ranks_[rank], piece);
    return own.seconds - own.waited;
  }

  /// As `own_seconds`, if the rank were as slow as the slowest one.
  double as_slowest(std::size_t rank, std::size_t piece) const {
    return own_seconds(rank, piece) + static_cast<double>(steps_of(piece)) * (slowest_ - by_itself_[rank]);
  }

  double seconds_of_least_waiting(std::size_t piece) const {
    double least = std::numeric_limits<double>::infinity();
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) least = std::min(least, as_slowest(rank, piece));
    return least;
  }

  double seconds_of_last(std::size_t piece) const {
    std::size_t last = 0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) {
      if (ranks_[rank][piece - 1].seconds > ranks_[last][piece - 1].seconds) last = rank;
    }
    return as_slowest(last, piece);
  }

  double seconds_from_common_start() const {
    double most = 0.0;
    for (std::size_t rank = 0; rank < ranks_.size(); ++rank) most = std::max(most, own_seconds(rank, 0));
    return most;
  }

  const std::vector<Pieces>& ranks_;
  const std::vector<double>& by_itself_;
  Meeting meeting_;
  double slowest_;
};

double undelayed_step(const std::vector<Pieces>& ranks, const std::vector<double>& by_itself, Meeting meeting) {
  const Window window(ranks, by_itself, meeting);
  double undisturbed_seconds = 0.0;
  std::uint64_t undisturbed_steps = 0;
  std::vector<double> others;
  for (std::size_t piece = 0; piece < window.pieces(); ++piece) {
    if (window.is_undisturbed(piece)) {
      undisturbed_seconds += window.seconds(piece);
      undisturbed_steps += window.steps_of(piece);
    } else {
      others.push_back(window.undelayed(piece) / static_cast<double>(window.steps_of(piece)));
    }
  }
  if (undisturbed_steps > 0) return undisturbed_seconds / static_cast<double>(undisturbed_steps);
  const auto quartile = others.begin() + static_cast<std::ptrdiff_t>(others.size() / 4);
  std::ranges::nth_element(others, quartile);
  return *quartile;
}

}  // namespace

std::vector<double> undelayed_steps(const std::vector<Pieces>& ranks, const std::vector<double>& by_itself,
                                    Meeting meeting) {
  DDP_CHECK(!ranks.empty() && !ranks.front().empty() && ranks.size() == by_itself.size(), "{} ranks", ranks.size());
  if (meeting == Meeting::between_hosts) {
    double most = 0.0;
    for (const Pieces& rank : ranks) most = std::max(most, rank.back().seconds);
    return std::vector(ranks.size(), most / static_cast<double>(ranks.front().back().steps));
  }
  std::vector<double> alone;
  for (const Pieces& rank : ranks) alone.push_back(undelayed_step(rank));
  if (meeting == Meeting::at_start && ranks.front().back().steps == 1) return alone;
  return std::vector(ranks.size(), undelayed_step(ranks, by_itself, meeting));
}

double undelayed_step(const Pieces& pieces) {
  const PieceEnd& end = pieces.back();
  return (end.seconds - end.waited) / static_cast<double>(end.steps);
}

}  // namespace ddptrain
