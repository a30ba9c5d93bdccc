#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "runtime/core/files/descriptor.h"

namespace ddptrain {

/// How far a rank is; what watchdogs tell each other.
struct Beat {
  enum class Kind : std::uint32_t {
    alive,     ///< Now and then, and as the answer to gives_up.
    gives_up,  ///< The sender has waited too long: answer, write your flight record, end.
    written,   ///< The sender's flight record is written.
    ended,     ///< The sender ends as it should.
  };

  std::uint64_t key = 0;  ///< Key of the job.
  std::int32_t rank = -1;
  Kind kind = Kind::alive;
  std::uint64_t steps = 0;         ///< Queued.
  std::uint64_t device_steps = 0;  ///< Ended.
  std::uint64_t collectives = 0;   ///< Called.
  std::uint64_t sequence = 0;      ///< Number of the oldest collective that has not ended; 0: none.
  std::int32_t bucket = -1;        ///< Bucket of that collective.
  float seconds = 0.0f;            ///< Since the sender last began or ended a wait.
  char collective[40] = {};
  char phase[24] = {};
  char waiting_for[56] = {};  ///< Empty: it computes.
};

/// Messages between the watchdogs of a job's ranks: UDP, so that a rank that is gone holds up nobody. One thread.
class PeerLink {
 public:
  PeerLink();  ///< Without a socket, if the system has none, it sends and receives nothing.

  int descriptor() const { return socket_.get(); }  ///< -1: not open.
  /// Where this rank is reached, as bytes for connect() of others.
  std::string addresses() const;
  /// `addresses`, `hosts`: of all ranks.
  void connect(std::uint64_t key, int rank, const std::vector<std::string>& addresses,
               const std::vector<std::string>& hosts);

  void send(int to, Beat beat);
  void send_to_all(const Beat& beat);
  /// The next one that has arrived; does not wait.
  std::optional<Beat> receive();

 private:
  struct Peer {
    std::vector<sockaddr_in> addresses;  ///< The one that it was heard from, or all that it has.
    bool heard = false;
  };

  Descriptor socket_;
  std::uint64_t key_ = 0;
  int rank_ = -1;
  std::vector<Peer> peers_;
};

}  // namespace ddptrain
