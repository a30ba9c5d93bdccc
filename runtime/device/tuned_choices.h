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
  /// Given what this rank has found, returns what all ranks take.
  using Agree = std::function<std::string(const std::string& mine)>;

  static std::unique_ptr<TunedChoices> make(Device&) { return std::make_unique<TunedChoices>(); }

  const std::string* find(const std::string& work) const;  ///< Null: not chosen yet.
  /// Whether choices may be made now. If not, an implementation is used that is not kept.
  bool open() const { return !agree_ || all_ranks_; }
  /// Keeps and returns `mine`, or what all ranks agree on. Only while open().
  std::string choose(const std::string& work, const std::string& mine);
  /// The choice that is kept for `work` cannot be used here. This run does without a choice, as other ranks may not
  /// have refused it and so would not take part in another one; the next run chooses again.
  void refuse(const std::string& work);

  /// From now on all ranks take what `agree`, which is collective, returns. So choices are made only while all ranks
  /// meet the same work in the same order: within AllRanks.
  void share(Agree agree) { agree_ = std::move(agree); }

  /// While it lives, all ranks do the same work in the same order.
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

  /// As if all of `choices` had been made before.
  void restore(Map choices) { choices_ = std::move(choices); }
  /// Choices that choose() has kept since the last call.
  Map take_new() { return std::exchange(new_, {}); }
  /// Work that refuse() was told since the last call.
  std::set<std::string> take_refused() { return std::exchange(refused_, {}); }

 private:
  Map choices_;
  Map new_;
  std::set<std::string> refused_;
  Agree agree_;
  bool all_ranks_ = false;
};

/// A choice that is `bytes` of a library's, as text and back; false if the text is none of as many bytes.
std::string choice_of(const void* data, std::size_t bytes);
bool read_choice(const std::string& choice, void* data, std::size_t bytes);

/// The machine that choices hold for: the name of the GPU and the versions of its libraries.
using TunedFor = std::map<std::string, std::string>;

std::string cublas_version();  ///< Needs no GPU. Empty in a build without CUDA.

/// The text of a file of choices (JSON).
std::string tuned_text(const TunedFor& machine, const TunedChoices::Map& choices);
/// UsageError, naming the file `name`, where `text` is damaged, of another format or of another machine.
TunedChoices::Map parse_tuned(std::string_view text, const std::string& name, const TunedFor& machine);

}  // namespace ddptrain
