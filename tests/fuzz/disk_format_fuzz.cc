// Any text as a directory's DISK_FORMAT: the directory is refused or opened, and what it holds is
// deleted only where the file says, with the right checksum, that deleting it had begun.
//
// First byte: bit 0 the line with the checksum is added, bit 1 the directory holds a value file.
// The rest is the text.

#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "cairn/common/hash.h"
#include "common/log/log.h"
#include "services/cache/store/tier/disk/directory.h"
#include "tests/fuzz/input.h"

namespace {

namespace fs = std::filesystem;
using namespace cairn;
using fuzz::Expect;

// In memory where the machine has a file system for that.
fs::path Folder() {
  const fs::path memory = "/dev/shm";
  const fs::path base = fs::is_directory(memory) ? memory : fs::temp_directory_path();
  return base / fmt::format("cairn-fuzz-disk-format-{}", getpid());
}

void WriteFile(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

struct Directory {
  Directory() {
    log::Configure({.level = log::Level::kError});
    fs::create_directories(path / "values");
    fs::create_directories(path / "db");
  }
  ~Directory() { fs::remove_all(path); }
  const fs::path path = Folder();
};

}  // namespace

CAIRN_FUZZ_ENTRY(disk_format)(const uint8_t* data, size_t size) {
  static const Directory directory;
  fuzz::Input input(data, size);
  const uint8_t mode = input.U8();
  std::string text(input.Rest());
  if ((mode & 1) != 0) text += fmt::format("check {:016x}\n", Xxh3(std::as_bytes(std::span(text))));
  const fs::path value = directory.path / "values" / "000001.seg";
  const bool held = (mode & 2) != 0;
  if (held) {
    WriteFile(value, "bytes");
  } else {
    fs::remove(value);
  }
  WriteFile(directory.path / "DISK_FORMAT", text);
  cache::disk::Directory::Options options;
  options.path = directory.path;
  options.segment_bytes = 64u << 20;
  const auto opened = cache::disk::Directory::Open(options);
  if (held && !fs::exists(value)) {
    Expect((mode & 1) != 0 && text.find("\nstate wiping\n") != std::string::npos);
  }
  if (!opened.ok()) return 0;
  Expect(!opened->node_id().empty() && opened->node_id().size() <= 64);
  Expect(opened->segment_bytes() % 4096 == 0 && opened->segment_bytes() >= 1 << 20);
  return 0;
}
