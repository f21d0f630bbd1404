#include "common/net/loaded_files.h"

#include <algorithm>
#include <utility>

#include "common/net/tls.h"

namespace cairn::net {

LoadedFiles& LoadedFiles::OfProcess() {
  static auto* const files = new LoadedFiles();
  return *files;
}

void LoadedFiles::Use(const std::string& loader, const std::vector<Text>& files) {
  bool again = false;
  MutexLock lock(mu_);
  for (const auto& [path, pem] : files) {
    if (path.empty()) continue;
    Loader& here = files_[path][loader];
    again = again || here.expiry;
    here.refused = false;
    if (const Result<double> expiry = CertificateExpiry(pem, path); expiry.ok()) {
      here.expiry = *expiry;
    }
  }
  if (again) ++counts_.taken;
}

void LoadedFiles::Refuse(const std::string& loader, const std::vector<std::string>& paths) {
  bool is_new = false;
  MutexLock lock(mu_);
  for (const std::string& path : paths) {
    if (path.empty()) continue;
    is_new = !std::exchange(files_[path][loader].refused, true) || is_new;
  }
  if (is_new) ++counts_.refused;
}

std::optional<LoadedFiles::File> LoadedFiles::Find(const std::string& path) const {
  MutexLock lock(mu_);
  const auto it = files_.find(path);
  if (it == files_.end()) return std::nullopt;
  std::optional<File> found;
  for (const auto& [name, loader] : it->second) {
    if (!loader.expiry) continue;
    if (!found) found = {.expiry = *loader.expiry};
    found->expiry = std::min(found->expiry, *loader.expiry);
    found->refused = found->refused || loader.refused;
  }
  return found;
}

LoadedFiles::Counts LoadedFiles::counts() const {
  MutexLock lock(mu_);
  return counts_;
}

}  // namespace cairn::net
