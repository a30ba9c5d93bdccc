#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <utility>

namespace ddptrain {

class Device;

/// Fastest implementations that DeviceOptions::tune has found, so that each operation is timed once. The key is the
/// work (operation, shape, types); the value is the choice, in the words of the code that timed it. Device::get returns
/// the choices of a device. A file can keep them between runs.
class TunedChoices {
 public:
  using Map = std::map<std::string, std::string>;
  /// Gets this rank's choice. Returns the choice for all ranks that do the same work.
  using Agree = std::function<std::string(const std::string& mine)>;

  static std::unique_ptr<TunedChoices> make(Device&) { return std::make_unique<TunedChoices>(); }

  const std::string* find(const std::string& work) const;  ///< Null: not chosen yet.
  /// Whether choices may be made now. If not, the caller uses an implementation and does not keep it as a choice.
  bool open() const { return !agree_ || all_ranks_; }
  /// Keeps and returns `mine`, or the choice that all ranks agree on. Only while open().
  std::string choose(const std::string& work, const std::string& mine);
  /// Drops the choice for `work`, which this machine cannot use. This run makes no other choice, because other ranks
  /// may not have refused theirs and would not take part. The next run chooses again.
  void refuse(const std::string& work);

  /// From now on all ranks of a stage take the choice that `agree` returns. `agree` is a collective of these ranks, so
  /// choices are made only within AllRanks.
  void share(Agree agree) { agree_ = std::move(agree); }

  /// While the object lives, all ranks that `agree` joins do the same work in the same order.
  class AllRanks {
   public:
    explicit AllRanks(TunedChoices& choices) : choices_(choices), before_(std::exchange(choices.all_ranks_, true)) {}
    ~AllRanks() { choices_.all_ranks_ = before_; }
    AllRanks(const AllRanks&) = delete;
    AllRanks& operator=(const AllRanks&) = delete;

   private:
    TunedChoices& choices_;
    bool before_;
  };

  /// Replaces all choices.
  void restore(Map choices) { choices_ = std::move(choices); }
  /// The choices that choose() has kept since the last call.
  Map take_new() { return std::exchange(new_, {}); }
  /// The work that refuse() has dropped since the last call.
  std::set<std::string> take_refused() { return std::exchange(refused_, {}); }

 private:
  Map choices_;
  Map new_;
  std::set<std::string> refused_;
  Agree agree_;
  bool all_ranks_ = false;
};

/// Convert `bytes` bytes of a library's choice to text and back. False if the text does not have that many bytes.
std::string choice_of(const void* data, std::size_t bytes);
bool read_choice(const std::string& choice, void* data, std::size_t bytes);

/// The machine that choices hold for: the name of the GPU and the versions of its libraries.
using TunedFor = std::map<std::string, std::string>;

std::string cublas_version();  ///< Needs no GPU. Empty in a build without CUDA.

/// The text of a file of choices (JSON).
std::string tuned_text(const TunedFor& machine, const TunedChoices::Map& choices);
/// UsageError, naming the file `name`, if `text` is damaged or has another format or machine.
TunedChoices::Map parse_tuned(std::string_view text, const std::string& name, const TunedFor& machine);

}  // namespace ddptrain
