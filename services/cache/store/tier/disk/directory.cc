#include "services/cache/store/tier/disk/directory.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <span>
#include <sstream>
#include <string_view>
#include <utility>

#include "cairn/common/hash.h"
#include "common/log/log.h"

namespace cairn::cache::disk {
namespace {

namespace fs = std::filesystem;

constexpr size_t kProbeBytes = 4096;
constexpr size_t kMaxFormatBytes = 4096;
constexpr std::string_view kCheck = "check ";
constexpr uint64_t kMinSegmentBytes = 1 << 20;
constexpr uint64_t kMaxSegmentBytes = uint64_t{1} << 43;

std::string Errno() { return std::strerror(errno); }

bool IsNodeId(const std::string& id) {
  if (id.empty() || id.size() > 64) return false;
  return id.find_first_not_of(
             "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.") ==
         std::string::npos;
}

Result<std::string> NewNodeId() {
  unsigned char bytes[8];
  if (getrandom(bytes, sizeof(bytes), 0) != sizeof(bytes)) {
    return Errorf(StatusCode::kUnavailable, "getrandom: {}", Errno());
  }
  std::string id = "node-";
  for (unsigned char b : bytes) id += fmt::format("{:02x}", b);
  return id;
}

// The contents of DISK_FORMAT. Empty strings where a line is missing.
struct Format {
  std::string version;
  std::string node_id;
  std::string state;
  uint64_t segment_bytes = 0;
  bool checked = false;  // It has a check line, which fits.
  bool whole = false;    // Checked, or exactly the lines of builds without a check line.
  std::string shown;     // The file's beginning, fit for a message.
};

std::string LinesOf(std::string_view version, std::string_view node_id, uint64_t segment_bytes,
                    std::string_view state) {
  return fmt::format("cairn-disk {}\nnode {}\nsegment {}\nstate {}\n", version, node_id,
                     segment_bytes, state);
}

std::string CheckLineOf(std::string_view lines) {
  return fmt::format("{}{:016x}\n", kCheck, Xxh3(std::as_bytes(std::span(lines))));
}

// `text`, which may be anything, on one line of printable characters.
std::string Printable(std::string_view text) {
  constexpr size_t kShown = 80;
  std::string out;
  for (const char c : text.substr(0, kShown)) {
    if (c == '\n') {
      out += "\\n";
    } else if (c >= ' ' && c <= '~') {
      out += c;
    } else {
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    }
  }
  if (text.size() > kShown) out += "...";
  return out;
}

bool HoldsFiles(const std::string& folder) {
  std::error_code error;
  return fs::exists(folder, error) && !fs::is_empty(folder, error);
}

std::optional<Format> ReadFormat(const std::string& path) {
  std::ifstream in(path);
  if (!in) return std::nullopt;
  std::string text(kMaxFormatBytes, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  Format format;
  format.shown = Printable(text);
  std::istringstream lines(text);
  std::string line;
  while (std::getline(lines, line)) {
    std::istringstream words(line);
    std::string key, value;
    words >> key >> value;
    if (key == "cairn-disk") format.version = value;
    if (key == "node") format.node_id = value;
    if (key == "state") format.state = value;
    if (key == "segment") format.segment_bytes = std::strtoull(value.c_str(), nullptr, 10);
  }
  const std::string expected =
      LinesOf(format.version, format.node_id, format.segment_bytes, format.state);
  format.checked = text == expected + CheckLineOf(expected);
  format.whole = format.checked || text == expected;
  return format;
}

// The fault of the directory; empty: none.
std::string MismatchOf(const Directory& directory, const Directory::Options& options,
                       const std::optional<Format>& format) {
  std::string mismatch;
  if (!format) {
    if (fs::exists(directory.database_path()) || fs::exists(directory.values_path())) {
      mismatch = "holds a database without DISK_FORMAT";
    }
  } else if (format->version != std::to_string(kDiskFormatVersion)) {
    mismatch = fmt::format("has format '{}', expected {} (DISK_FORMAT says '{}')",
                           Printable(format->version), kDiskFormatVersion, format->shown);
  } else if (!IsNodeId(format->node_id)) {
    mismatch = fmt::format(
        "has node '{}', expected 1 to 64 letters, digits, '-', '_' or '.' (DISK_FORMAT says '{}')",
        Printable(format->node_id), format->shown);
  } else if (format->segment_bytes < kMinSegmentBytes || format->segment_bytes > kMaxSegmentBytes ||
             format->segment_bytes % kProbeBytes != 0) {
    mismatch = fmt::format(
        "has segments of {} bytes, expected {} to {} in steps of {} (DISK_FORMAT says '{}')",
        format->segment_bytes, kMinSegmentBytes, kMaxSegmentBytes, kProbeBytes, format->shown);
  } else if (!format->whole) {
    mismatch = fmt::format("has a damaged DISK_FORMAT (it says '{}')", format->shown);
  } else if (format->state != "ready" && format->state != "new" &&
             !(format->checked && format->state == "wiping")) {
    mismatch = fmt::format("has state '{}', expected ready (DISK_FORMAT says '{}')",
                           Printable(format->state), format->shown);
  } else if (format->state == "new" && HoldsFiles(directory.values_path())) {
    // Value files are made after the directory is ready.
    mismatch = "holds value files, and its DISK_FORMAT says that it is new";
  } else if (!options.node_id.empty() && format->node_id != options.node_id && !options.take_over) {
    mismatch = fmt::format("belongs to node '{}', this is '{}'", format->node_id, options.node_id);
  }
  return mismatch;
}

}  // namespace

Result<Directory> Directory::Open(const Options& options) {
  if (options.path.empty()) {
    return InvalidArgument("disk.path: got '', expected a path");
  }
  if (!options.node_id.empty() && !IsNodeId(options.node_id)) {
    return InvalidArgument(
        "option 'node_id': got '{}', expected 1 to 64 letters, digits, '-', '_' or '.'",
        options.node_id);
  }
  std::error_code error;
  fs::create_directories(options.path, error);
  if (error) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: cannot make '{}': {}", options.path,
                  error.message());
  }

  Directory directory;
  directory.path_ = options.path;
  const std::string lock_path = options.path + "/LOCK";
  directory.lock_fd_ = open(lock_path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (directory.lock_fd_ < 0) {
    return Errorf(StatusCode::kFailedPrecondition, "disk.path: cannot open '{}': {}", lock_path,
                  Errno());
  }
  if (flock(directory.lock_fd_, LOCK_EX | LOCK_NB) != 0) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "disk.path: '{}' is in use by another process (LOCK is held)", options.path);
  }

  const std::optional<Format> format = ReadFormat(options.path + "/DISK_FORMAT");
  const std::string mismatch = MismatchOf(directory, options, format);
  if (!mismatch.empty() && !options.wipe_on_mismatch) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "disk.path: '{}' {}; name another directory, or delete what it holds with "
                  "disk.wipe_on_mismatch",
                  options.path, mismatch);
  }

  if (format && mismatch.empty()) {
    directory.node_id_ = options.node_id.empty() ? format->node_id : options.node_id;
    const bool renamed = directory.node_id_ != format->node_id;
    if (renamed) {
      log::Info("disk_taken_over",
                {{"directory", options.path}, {"from", format->node_id}, {"to", options.node_id}});
    }
    directory.segment_bytes_ = format->segment_bytes;
    if (format->state != "ready") {
      // A database that was never finished holds nothing, and one that is being deleted neither.
      CAIRN_RETURN_IF_ERROR(directory.Wipe());
    } else if (renamed || !format->checked) {
      CAIRN_RETURN_IF_ERROR(directory.WriteFormat("ready"));
    }
    return directory;
  }
  directory.segment_bytes_ = options.segment_bytes;
  directory.node_id_ = options.node_id;
  if (directory.node_id_.empty()) {
    CAIRN_ASSIGN_OR_RETURN(directory.node_id_, NewNodeId());
  }
  CAIRN_RETURN_IF_ERROR(directory.Wipe());
  return directory;
}

Directory::Directory(Directory&& other) noexcept
    : path_(std::move(other.path_)),
      node_id_(std::move(other.node_id_)),
      segment_bytes_(other.segment_bytes_),
      is_new_(other.is_new_),
      lock_fd_(std::exchange(other.lock_fd_, -1)) {}

Directory::~Directory() {
  if (lock_fd_ >= 0) close(lock_fd_);
}

Status Directory::WriteFormat(const char* state) {
  // Written aside and renamed: a crash leaves the old file or the new one, never half of one.
  const std::string path = path_ + "/DISK_FORMAT";
  const std::string aside = path + ".new";
  const std::string lines =
      LinesOf(std::to_string(kDiskFormatVersion), node_id_, segment_bytes_, state);
  const std::string text = lines + CheckLineOf(lines);
  const int fd = open(aside.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  bool done = fd >= 0 && write(fd, text.data(), text.size()) == static_cast<ssize_t>(text.size()) &&
              fsync(fd) == 0;
  int error = errno;
  if (fd >= 0) close(fd);
  if (done && rename(aside.c_str(), path.c_str()) != 0) {
    done = false;
    error = errno;
  }
  if (!done) {
    return Errorf(error == ENOSPC ? StatusCode::kResourceExhausted : StatusCode::kUnavailable,
                  "cannot write '{}': {}", path, std::strerror(error));
  }
  const int dir = open(path_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (dir >= 0) {
    (void)fsync(dir);
    close(dir);
  }
  return OkStatus();
}

Status Directory::MarkReady() {
  CAIRN_RETURN_IF_ERROR(WriteFormat("ready"));
  is_new_ = false;
  return OkStatus();
}

Status Directory::Wipe() {
  // First the mark, so that a crash in the middle of deleting leaves no half database that looks
  // whole.
  CAIRN_RETURN_IF_ERROR(WriteFormat("wiping"));
  is_new_ = true;
  for (const std::string& folder : {database_path(), values_path()}) {
    std::error_code error;
    fs::remove_all(folder, error);
    if (!error) fs::create_directory(folder, error);
    if (error) {
      return Errorf(StatusCode::kUnavailable, "cannot make '{}' again: {}", folder,
                    error.message());
    }
  }
  return WriteFormat("new");
}

bool Directory::SupportsDirectIo() const {
  const std::string path = path_ + "/DIRECT_IO_PROBE";
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
  bool works = false;
  if (fd >= 0) {
    std::unique_ptr<void, void (*)(void*)> buffer(std::aligned_alloc(kProbeBytes, kProbeBytes),
                                                  std::free);
    std::memset(buffer.get(), 1, kProbeBytes);
    works = pwrite(fd, buffer.get(), kProbeBytes, 0) == kProbeBytes &&
            pread(fd, buffer.get(), kProbeBytes, 0) == kProbeBytes;
    close(fd);
  }
  unlink(path.c_str());
  return works;
}

}  // namespace cairn::cache::disk
