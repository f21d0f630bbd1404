#pragma once
// Where two ranks meet: shared memory whose name is in the unique id. One thread at a time of each
// process uses a Meeting.

#include <sys/types.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

namespace cairn::link::fake {

class Meeting {
 public:
  // A name that nobody has. "": the system refuses.
  static std::string Create();
  // nullptr: there is none.
  static std::unique_ptr<Meeting> Enter(const std::string& name, int rank);
  ~Meeting();

  bool both() const;
  bool peer_lives() const;
  // Windows of a rank.
  void SetWindows(uint32_t count);
  uint32_t PeerWindows() const;

  // Bytes to the peer, and from it; how many went. Neither waits.
  size_t Write(const void* from, size_t bytes);
  size_t Read(void* to, size_t bytes);
  size_t Readable() const;
  size_t Room() const;

 private:
  struct Shared;
  Meeting(Shared* shared, int rank, std::string name)
      : shared_(shared), rank_(rank), name_(std::move(name)) {}

  Shared* const shared_;
  const int rank_;
  const std::string name_;
};

}  // namespace cairn::link::fake
