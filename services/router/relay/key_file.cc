#include "services/router/relay/key_file.h"

#include <algorithm>
#include <utility>

#include "common/config/text_file.h"
#include "common/log/log.h"

namespace cairn::router {
namespace {

constexpr size_t kMaxKeyBytes = 4096;

}  // namespace

Result<std::unique_ptr<KeyFile>> KeyFile::Open(const std::string& path, const std::string& field,
                                               const Clock* clock) {
  std::unique_ptr<KeyFile> file(new KeyFile(path, field, clock));
  CAIRN_ASSIGN_OR_RETURN(std::string key, file->Read());
  MutexLock lock(file->mu_);
  file->key_ = std::move(key);
  file->read_at_ = clock->Now();
  return file;
}

Result<std::string> KeyFile::Read() const {
  const Result<std::string> text = config::ReadSecretFile(path_, field_);
  if (!text.ok()) return text.status();
  // More lines may be comments.
  std::string line = text->substr(0, text->find_first_of("\r\n"));
  // It becomes part of a header.
  const bool printable =
      std::ranges::all_of(line, [](unsigned char c) { return c > ' ' && c < 0x7f; });
  if (line.empty() || line.size() > kMaxKeyBytes || !printable) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{}: cannot use '{}', expected a file with an API key in its first line", field_,
                  path_);
  }
  return line;
}

void KeyFile::ReadAgain() {
  const TimePoint now = clock_->Now();
  if (now - read_at_ < std::chrono::seconds(1)) return;
  read_at_ = now;
  auto key = Read();
  stale_ = !key.ok();
  if (key.ok()) {
    key_ = *std::move(key);
  } else {
    log::Warn("router_engine_key_unreadable", {{"error", ToString(key.status())}});
  }
}

std::string KeyFile::Get() {
  MutexLock lock(mu_);
  ReadAgain();
  return key_;
}

bool KeyFile::stale() {
  MutexLock lock(mu_);
  ReadAgain();
  return stale_;
}

}  // namespace cairn::router
