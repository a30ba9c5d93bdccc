#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/device/buffer.h"
#include "runtime/device/device.h"
#include "runtime/outer/fold.h"
#include "runtime/outer/log_client.h"
#include "runtime/outer/log_faults.h"
#include "runtime/outer/record.h"
#include "runtime/outer/run_registry.h"
#include "runtime/train/groups/outer_options.h"
#include "runtime/train/groups/run_settings.h"

namespace ddptrain {

/// How far a group has come with a fragment. The same on all its ranks.
struct OuterPart {
  bool in_flight = false;    ///< Its last difference is not a part of its weights yet.
  std::int64_t sent_at = 0;  ///< Step of the last difference.
};

/// Rank 0's copy of the outer state in host memory, its connections to the log, and what has come from there.
class OuterState {
 public:
  /// What a group has sent last of a fragment.
  struct Sent {
    std::uint64_t round = 0;
    std::uint64_t base = 0;  ///< The version of the outer weights that the group trains from.
    std::uint64_t age = 0;
  };

  /// Options and layout outlive the object.
  OuterState(const OuterOptions& options, OuterLayout& layout, Device& device);
  ~OuterState();
  OuterState(const OuterState&) = delete;
  OuterState& operator=(const OuterState&) = delete;

  std::span<float> floats(const Buffer& buffer, OuterLayout::Range range) const {
    return {static_cast<float*>(buffer.data()) + range.begin, static_cast<std::size_t>(range.count())};
  }
  std::span<float> all(const Buffer& buffer) const {
    return {static_cast<float*>(buffer.data()), buffer.bytes() / sizeof(float)};
  }

  /// Enters the run in the log: compares settings, takes the name of the group and, without rounds, the newest
  /// snapshot. Sets layout.run. `resumed`: name of the checkpoint that read_record() has read; empty: none.
  /// UsageError if the group does not belong there. False if `is_interrupted` has ended a wait.
  bool connect(GroupSettings settings, const std::vector<OuterParameter>& parameters, std::vector<OuterPart>& parts,
               const std::string& resumed, const std::function<bool()>& is_interrupted);
  /// UsageError if another job has the name of the group by now, or if entries that this group lacks are no longer in
  /// the log.
  void require_place() const;
  bool has_place() const;

  /// Encodes `sent`'s distance from the outer weights, and sends it. Error at a value that is not finite.
  void send(std::int64_t fragment, std::int64_t step);
  /// Sends the last difference of a fragment again.
  void append(std::int64_t fragment);
  void take_entries();
  /// Adds entries until the round is complete that the group trains in. Whether it is.
  bool fold_round(std::int64_t fragment);
  /// Without rounds: adds all entries that have come, if the group's own difference is among them. Whether it is.
  bool fold_own(std::int64_t fragment);
  void fold_all(std::int64_t fragment);
  std::string waiting_for(std::int64_t fragment) const;
  std::uint64_t version() const;  ///< The lowest of a fragment.

  /// Tells the run how far the group has come, and writes a snapshot if that is due. `kept`: step of a checkpoint from
  /// which the group may have to repeat; nothing: none is complete.
  void tell(std::int64_t step, std::optional<std::int64_t> kept);
  void write_record(const std::vector<OuterPart>& parts);
  /// UsageError, naming `path`, if the record is damaged.
  void read_record(const std::string& path, std::vector<OuterPart>& parts);

  Buffer weights, velocity;
  Buffer residual;  ///< Rounding errors of what was sent.
  Buffer sent;      ///< The group's weights when it sent its last difference.
  Buffer payload;   ///< The last differences.
  Buffer record;
  std::optional<OuterFold> fold;
  std::optional<LogOutage> outage;
  std::optional<LogClient> log;
  std::optional<RunRegistry> registry;
  std::vector<Sent> mine;
  std::string position_taken;  ///< Of the last entry of the log that was taken.
  std::int64_t skipped = 0;
  std::int64_t exchanges = 0;
  std::string initial;  ///< Hash of the weights before the first step.

 private:
  struct Received {
    std::int64_t number;  ///< In the order of the log.
    std::string before;   ///< Position before this entry.
    std::string id;
    std::string bytes;
    OuterEntry entry;  ///< Of `bytes`. A deque never moves it.
  };

  bool rounds() const { return options_.rule.groups > 0; }
  std::uint8_t* payload_of(std::int64_t fragment) const;
  std::size_t payload_bytes(std::int64_t fragment) const {
    return encoded_bytes(layout_.codec, layout_.range(fragment).count());
  }
  std::size_t largest_payload() const;
  void require_limits() const;
  std::uint64_t bytes_kept_free(std::size_t entry) const;
  void enter_run(const GroupSettings& settings, const std::string& resumed);
  void begin_with_snapshot(std::vector<OuterPart>& parts);
  bool use_snapshot(const SnapshotHead& head);
  bool is_fit(const SnapshotHead& head) const;
  void free_folded_parts(std::vector<OuterPart>& parts) const;
  void write_snapshot();
  OuterFold::Outcome add(std::int64_t fragment);
  void drop_added(std::int64_t fragment);
  void note_fault(const std::string& group, const std::string& what);
  std::string position() const;

  const OuterOptions& options_;
  OuterLayout& layout_;
  std::string run_id_;
  std::string run_name_;
  std::optional<OuterRecorder> recorder_;
  std::vector<std::deque<Received>> received_;  ///< By fragment. In rounds, entries stay until their round is complete.
  std::vector<std::size_t> added_;              ///< The first ones, which the fold has got.
  std::vector<std::string> folded_;             ///< Position of the last entry that has left the queue.
  std::int64_t taken_ = 0;
  std::map<std::int64_t, std::string> positions_;  ///< In rounds: by the step at which they were reached.
  std::map<std::string, int> fault_lines_;
};

}  // namespace ddptrain
