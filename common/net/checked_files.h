#pragma once
// PEM files that others replace, as far as they are right, for gRPC to open.
//
// gRPC 1.51 uses whatever it reads again. With a key that does not belong to the certificate it
// takes no connection any more, and an empty file ends the process. So gRPC reads copies in memory.
// They are replaced by what was checked.
//
//   /etc/.../tls.key, tls.crt, ca.crt ──Look──► check ──► copies ──► gRPC's own watcher
//                                                └─ wrong: the copies stay, the log says why

#include <array>
#include <string>

#include "common/net/tls.h"

namespace cairn::net {

// One thread calls Look; the rest is thread-safe. The copies end with the object.
class CheckedFiles {
 public:
  explicit CheckedFiles(PemFiles files);
  ~CheckedFiles();
  CheckedFiles(const CheckedFiles&) = delete;
  CheckedFiles& operator=(const CheckedFiles&) = delete;

  // Reads the files again. A change that is wrong is logged once.
  void Look();

  // Paths that this process can open; empty where `files` has none. As long as the files have never
  // been right, nothing can be opened there. Certificate and key have one path: the copies of both
  // change at the same moment.
  const PemFiles& copies() const { return copies_; }

 private:
  void TellUsed() const;  // To LoadedFiles.

  const PemFiles files_;
  const std::string loader_;  // As LoadedFiles knows it.
  PemFiles copies_;
  std::array<int, 2> descriptors_{-1, -1};  // Certificate with key; authorities.
  PemTexts used_, refused_;
};

}  // namespace cairn::net
