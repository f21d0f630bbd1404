#pragma once
// The directory of a disk tier: which node owns it, which format it has, and the lock that lets
// only one process use it.
//
//   DISK_FORMAT  text, "cairn-disk 2\nnode NAME\nsegment BYTES\nstate ready\ncheck HASH\n";
//                the state is "new" until the database was made once, and "wiping" while what the
//                directory held is deleted with permission
//   LOCK         locked while a process uses the directory
//   db/          the database
//   values/      the segment files
//
// Nothing else in the directory is touched. docs/inside/formats/disk.md.

#include <cstdint>
#include <string>

#include "cairn/common/status.h"

namespace cairn::cache::disk {

inline constexpr int kDiskFormatVersion = 2;

// Holds the lock. Move-only.
class Directory {
 public:
  struct Options {
    std::string path;
    std::string node_id;         // Empty: the name in the directory, or a new one.
    uint64_t segment_bytes = 0;  // The size of the first value files of a new directory.
    bool wipe_on_mismatch = false;
    bool take_over = false;  // A directory of another node becomes that of `node_id`.
  };
  // Makes the directory if it does not exist. FAILED_PRECONDITION: another process uses it, it has
  // another format or node, its DISK_FORMAT is damaged, or it has a database without DISK_FORMAT.
  // Without `wipe_on_mismatch`, only a directory that never held a value file is emptied. With
  // `take_over`, what another node stored stays.
  static Result<Directory> Open(const Options& options);
  Directory(Directory&& other) noexcept;
  Directory& operator=(Directory&&) = delete;
  ~Directory();

  const std::string& path() const { return path_; }
  std::string database_path() const { return path_ + "/db"; }
  std::string values_path() const { return path_ + "/values"; }
  const std::string& node_id() const { return node_id_; }
  // The size of value files for which the database has none: those of builds that had one size for
  // all.
  uint64_t segment_bytes() const { return segment_bytes_; }
  // True until MarkReady: the database must still be made.
  bool is_new() const { return is_new_; }
  Status MarkReady();
  // Deletes the database and the value files, and makes empty folders for them. The directory is
  // then new, with the same node. Goes on at the next Open if the process dies meanwhile.
  Status Wipe();
  // True when a file here can be opened, written and read with O_DIRECT.
  bool SupportsDirectIo() const;

 private:
  Directory() = default;
  Status WriteFormat(const char* state);

  std::string path_;
  std::string node_id_;
  uint64_t segment_bytes_ = 0;
  bool is_new_ = false;
  int lock_fd_ = -1;
};

}  // namespace cairn::cache::disk
