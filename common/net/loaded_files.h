#pragma once
// Which TLS files this process uses, and whether what lies there now could be used.

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/concurrency/mutex.h"

namespace cairn::net {

// Whoever reads TLS files again and again says so here, for metrics: files that have become wrong
// change nothing, so nothing else shows it before the certificate of before is over. Thread-safe.
class LoadedFiles {
 public:
  // The one of this process: gRPC's credentials and HTTP servers have no other place in common.
  static LoadedFiles& OfProcess();

  struct Text {
    std::string path;  // Empty: there is no such file.
    std::string pem;   // Its first certificate counts.
  };
  // `loader` uses what it has read from now on. It has a name of its own, since several may use one
  // path, and not change at the same time.
  void Use(const std::string& loader, const std::vector<Text>& files);
  // At least one of the files that lie there now cannot be used.
  void Refuse(const std::string& loader, const std::vector<std::string>& paths);

  struct File {
    double expiry = 0;     // When the first certificate in use ends; seconds since 1970.
    bool refused = false;  // At least one loader could not use what lies there now.
  };
  // nullopt: nobody uses a certificate of this path.
  std::optional<File> Find(const std::string& path) const;
  struct Counts {
    uint64_t taken = 0;    // Changes of files that loaders have used.
    uint64_t refused = 0;  // Times that files became wrong.
  };
  Counts counts() const;

 private:
  struct Loader {
    std::optional<double> expiry = {};
    bool refused = false;
  };
  mutable Mutex mu_;
  std::map<std::string, std::map<std::string, Loader>> files_ ABSL_GUARDED_BY(mu_);
  Counts counts_ ABSL_GUARDED_BY(mu_);
};

}  // namespace cairn::net
