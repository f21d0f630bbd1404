#include "common/net/checked_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "common/log/log.h"
#include "common/net/loaded_files.h"

namespace cairn::net {
namespace {

std::string NextLoader() {
  static std::atomic<int> made{0};
  return fmt::format("grpc {}", made.fetch_add(1));
}

bool WriteAll(int fd, std::string_view text) {
  while (!text.empty()) {
    const ssize_t written = write(fd, text.data(), text.size());
    if (written <= 0) return false;
    text.remove_prefix(static_cast<size_t>(written));
  }
  return true;
}

// Whoever opens the descriptor's path from now on gets the new text, and never half of it.
bool Replace(int descriptor, std::string_view text) {
  const int made = memfd_create("cairn-pem", MFD_CLOEXEC);
  if (made < 0) return false;
  struct stat before {
  }, now{};
  fstat(descriptor, &before);
  fstat(made, &now);
  bool done = WriteAll(made, text);
  // gRPC compares the times of change before and after it reads, in seconds.
  const time_t at = std::max(now.st_mtime, before.st_mtime + 1);
  const timespec times[2] = {{at, 0}, {at, 0}};
  done = done && futimens(made, times) == 0 && dup3(made, descriptor, O_CLOEXEC) >= 0;
  close(made);
  return done;
}

// A descriptor whose path nobody can open.
int MakeClosedPath() { return socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0); }

std::string PathOf(int descriptor) { return fmt::format("/proc/self/fd/{}", descriptor); }

}  // namespace

CheckedFiles::CheckedFiles(PemFiles files) : files_(std::move(files)), loader_(NextLoader()) {
  if (!files_.certificate.empty()) {
    descriptors_[0] = MakeClosedPath();
    copies_.certificate = copies_.private_key = PathOf(descriptors_[0]);
  }
  if (!files_.authorities.empty()) {
    descriptors_[1] = MakeClosedPath();
    copies_.authorities = PathOf(descriptors_[1]);
  }
  Look();
}

CheckedFiles::~CheckedFiles() {
  for (const int descriptor : descriptors_) {
    if (descriptor >= 0) close(descriptor);
  }
}

void CheckedFiles::Look() {
  PemTexts texts = ReadPem(files_);
  if (texts == used_) {
    if (std::exchange(refused_, {}) != PemTexts()) TellUsed();
    return;
  }
  // Files that are being replaced are read when that is over.
  PemTexts again = ReadPem(files_);
  if (texts != again) texts = std::exchange(again, ReadPem(files_));
  if (texts != again) return;
  if (const Status status = CheckPem(files_, texts); !status.ok()) {
    if (texts != refused_) log::Warn("tls_reload_failed", {{"error", ToString(status)}});
    refused_ = std::move(texts);
    LoadedFiles::OfProcess().Refuse(loader_, {files_.certificate, files_.authorities});
    return;
  }
  bool done = true;
  if (texts.certificate && texts.private_key &&
      (texts.certificate != used_.certificate || texts.private_key != used_.private_key)) {
    done = Replace(descriptors_[0], *texts.private_key + "\n" + *texts.certificate);
  }
  if (texts.authorities && texts.authorities != used_.authorities) {
    done = Replace(descriptors_[1], *texts.authorities) && done;
  }
  if (!done) {
    log::Warn("tls_reload_failed", {{"error", "no file in memory can be made"}});
    return;
  }
  const bool first = used_ == PemTexts();
  used_ = std::move(texts);
  refused_ = {};
  TellUsed();
  if (!first) {
    log::Info("tls_reloaded",
              {{"certificate", files_.certificate}, {"authorities", files_.authorities}});
  }
}

void CheckedFiles::TellUsed() const {
  LoadedFiles::OfProcess().Use(loader_, {{files_.certificate, used_.certificate.value_or("")},
                                         {files_.authorities, used_.authorities.value_or("")}});
}

}  // namespace cairn::net
