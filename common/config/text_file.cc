#include "common/config/text_file.h"

#include <cerrno>
#include <cstring>
#include <fstream>
#include <optional>

namespace cairn::config {
namespace {

constexpr std::string_view kMark = "\xef\xbb\xbf";
constexpr size_t kMaxSecretBytes = 64 << 10;

// At most `max_bytes` + 1 bytes: who asks sees that there are more. nullopt: it cannot be read.
std::optional<std::string> ReadBytes(const std::string& path, size_t max_bytes) {
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  if (!in) return std::nullopt;
  std::string bytes(max_bytes + 1, '\0');
  in.read(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  if (in.bad()) return std::nullopt;  // A folder can be opened, and not read.
  bytes.resize(static_cast<size_t>(in.gcount()));
  return bytes;
}

}  // namespace

std::string_view WithoutByteOrderMark(std::string_view text) {
  if (text.starts_with(kMark)) text.remove_prefix(kMark.size());
  return text;
}

Result<std::string> ReadTextFile(const std::string& path, const std::string& field,
                                 size_t max_bytes) {
  const std::optional<std::string> bytes = ReadBytes(path, max_bytes);
  if (!bytes) {
    return Errorf(StatusCode::kFailedPrecondition, "{}: cannot read '{}': {}", field, path,
                  std::strerror(errno));
  }
  if (bytes->size() > max_bytes) {
    return InvalidArgument("{}: '{}' has more than {} bytes", field, path, max_bytes);
  }
  if (bytes->starts_with("\xff\xfe") || bytes->starts_with("\xfe\xff")) {
    return InvalidArgument("{}: '{}' is UTF-16, expected UTF-8", field, path);
  }
  return std::string(WithoutByteOrderMark(*bytes));
}

Result<std::string> ReadSecretFile(const std::string& path, const std::string& field) {
  std::optional<std::string> bytes = ReadBytes(path, kMaxSecretBytes);
  std::string secret;
  if (bytes && bytes->size() <= kMaxSecretBytes) {
    secret = WithoutByteOrderMark(*bytes);
    while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  }
  if (secret.empty()) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "{}: got '{}', expected a file that can be read, with 1 to {} bytes", field, path,
                  kMaxSecretBytes);
  }
  return secret;
}

}  // namespace cairn::config
