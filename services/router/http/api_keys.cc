#include "services/router/http/api_keys.h"

#include <algorithm>
#include <fstream>
#include <set>
#include <utility>

#include "common/config/text_file.h"
#include "common/log/log.h"
#include "model/utf8.h"

namespace cairn::router {
namespace {

constexpr std::string_view kSpaces = " \t\r";

std::string_view TakeWord(std::string_view& line) {
  line.remove_prefix(std::min(line.find_first_not_of(kSpaces), line.size()));
  const std::string_view word = line.substr(0, line.find_first_of(kSpaces));
  line.remove_prefix(word.size());
  return word;
}

}  // namespace

bool IsTenant(std::string_view text) {
  return !text.empty() && text.size() <= kMaxTenantBytes &&
         std::ranges::all_of(text, [](unsigned char c) { return c > ' ' && c != 0x7f; }) &&
         model::ValidUtf8Prefix(text) == text.size();
}

Result<std::vector<ApiKey>> ParseApiKeys(std::string_view text) {
  std::vector<ApiKey> keys;
  std::set<Digest> seen;
  text = config::WithoutByteOrderMark(text);
  for (int number = 1; !text.empty(); ++number) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    const std::string_view tenant = TakeWord(line), hex = TakeWord(line), more = TakeWord(line);
    if (tenant.empty() || tenant.front() == '#') continue;
    if (!IsTenant(tenant)) {
      return InvalidArgument("line {}: expected a tenant of at most {} bytes of UTF-8", number,
                             kMaxTenantBytes);
    }
    // The line may have a key by mistake: it is not shown.
    const Result<Digest> digest = Digest::FromHex(hex, "key");
    if (!digest.ok() || !more.empty()) {
      return InvalidArgument(
          "line {}: expected a tenant and 64 hexadecimal digits, the SHA-256 of its key", number);
    }
    if (!seen.insert(*digest).second) {
      return InvalidArgument("line {}: expected a key that no line above has", number);
    }
    keys.push_back({std::string(tenant), *digest});
  }
  return keys;
}

const std::string* FindTenant(const std::vector<ApiKey>& keys, std::string_view key) {
  const Digest digest = Sha256::Of(key);
  const std::string* found = nullptr;
  for (const ApiKey& each : keys) {
    unsigned different = 0;
    for (size_t i = 0; i < digest.bytes.size(); ++i) {
      different |= static_cast<unsigned>(digest.bytes[i] ^ each.digest.bytes[i]);
    }
    found = different == 0 ? &each.tenant : found;
  }
  return found;
}

Result<std::unique_ptr<ApiKeyFile>> ApiKeyFile::Open(std::string path, const std::string& field,
                                                     const Clock* clock) {
  std::unique_ptr<ApiKeyFile> file(new ApiKeyFile(std::move(path), clock));
  MutexLock lock(file->mu_);
  auto keys = file->Read();
  if (!keys.ok()) return Annotate(keys.status(), field);
  file->keys_ = std::make_shared<const std::vector<ApiKey>>(*std::move(keys));
  return file;
}

Result<std::vector<ApiKey>> ApiKeyFile::Read() const {
  const std::string& path = file_.path();
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "cannot read '{}', expected a file of lines 'TENANT SHA256'", path);
  }
  std::string text(kMaxKeyFileBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  text.resize(static_cast<size_t>(in.gcount()));
  if (text.size() > kMaxKeyFileBytes) {
    return InvalidArgument("'{}' has more than {} bytes", path, kMaxKeyFileBytes);
  }
  auto keys = ParseApiKeys(text);
  if (!keys.ok()) return Annotate(keys.status(), fmt::format("'{}'", path));
  return keys;
}

void ApiKeyFile::LookAgain() {
  const auto news = file_.Look(clock_->Now(), !stale_);
  if (news == config::FollowedFile::News::kNone) return;
  auto read = Read();
  stale_ = !read.ok();
  if (read.ok()) {
    keys_ = std::make_shared<const std::vector<ApiKey>>(*std::move(read));
  } else if (news == config::FollowedFile::News::kChanged) {
    log::Warn("http_api_keys_reload_failed", {{"error", ToString(read.status())}});
  }
}

bool ApiKeyFile::stale() {
  MutexLock lock(mu_);
  LookAgain();
  return stale_;
}

std::optional<std::string> ApiKeyFile::TenantOf(std::string_view key) {
  std::shared_ptr<const std::vector<ApiKey>> keys;
  {
    MutexLock lock(mu_);
    LookAgain();
    keys = keys_;
  }
  const std::string* const tenant = FindTenant(*keys, key);
  if (tenant == nullptr) return std::nullopt;
  return *tenant;
}

}  // namespace cairn::router
