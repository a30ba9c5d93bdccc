#pragma once

#include <string>
#include <vector>

#include "runtime/diagnostics/peer_link.h"

namespace ddptrain {

/// What a watchdog knows of another rank at the time-out.
struct PeerState {
  std::string name;           ///< For messages.
  bool heard = false;         ///< At any time.
  bool ended = false;         ///< As it should.
  bool answers = false;       ///< To the question how far it is.
  bool heard_lately = false;  ///< It may have stood still only just now.
  double seconds_ago = 0.0;   ///< Since it was last heard.
  /// The numbers of its collectives can be compared with this rank's. Pipeline stages call different collectives.
  bool calls_the_same = true;
  Beat last = {};
};

/// What a rank does: "waiting in all-reduce of bucket 3 (collective 118)", "busy with its own work".
std::string doing(const Beat& beat);
/// How far it is: "training, step 12".
std::string where(const Beat& beat);

/// A sentence that names the ranks for which this one, with the beat `own`, may wait. All groups are named, the surest
/// first: ranks that have not entered a collective for about as long as this one has waited, ranks that have ended,
/// ranks that do not answer, ranks that have not come as far, ranks that were heard lately and do not answer. In each
/// group, the ranks that have not called the collective in which this one waits come first. A rank that has called it
/// and has computed for a short time is named only if there is no other.
std::string missing_ranks(const Beat& own, const std::vector<PeerState>& others);

}  // namespace ddptrain
