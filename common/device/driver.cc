#include "common/device/driver.h"

#include <dlfcn.h>
#include <link.h>

#include <cstring>
#include <filesystem>
#include <map>

#include "common/concurrency/mutex.h"
#include "common/device/device.h"
#include "common/log/log.h"

namespace cairn::device {
namespace {

std::string UuidText(const uint8_t (&uuid)[16]) {
  std::string text = "GPU-";
  for (size_t i = 0; i < sizeof(uuid); ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += '-';
    text += fmt::format("{:02x}", uuid[i]);
  }
  return text;
}

// The folder of the shared object that this code is part of, such as a module of Python. Empty in a
// program: the linker's name of a program is empty, too.
std::filesystem::path FolderOfThisObject() {
  Dl_info info;
  link_map* object = nullptr;
  const auto here = reinterpret_cast<const void*>(&UuidText);
  if (dladdr1(here, &info, reinterpret_cast<void**>(&object), RTLD_DL_LINKMAP) == 0) return {};
  return std::filesystem::path(object->l_name).parent_path();
}

// Where a bare name may lie: next to the code that looks for it (a Python package carries both),
// next to the program, in the libraries of its installation, and where the linker looks.
std::vector<std::string> Candidates(const std::string& path) {
  const std::string name = path.empty() ? std::string(kCudaLibrary) : path;
  if (name.find('/') != std::string::npos) return {name};
  std::vector<std::string> candidates;
  if (const auto folder = FolderOfThisObject(); !folder.empty()) {
    candidates.push_back((folder / name).string());
  }
  std::error_code error;
  if (const auto self = std::filesystem::read_symlink("/proc/self/exe", error); !error) {
    const auto folder = self.parent_path();
    candidates.push_back((folder / name).string());
    candidates.push_back((folder.parent_path() / "lib" / name).string());
  }
  candidates.push_back(name);
  return candidates;
}

Result<const DriverTable*> OpenLibrary(const std::string& path) {
  std::string reasons;
  for (const std::string& candidate : Candidates(path)) {
    // Local: the driver's symbols must not stand in for others.
    void* const library = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      reasons += (reasons.empty() ? "" : "; ") + std::string(dlerror());
      continue;
    }
    const auto get = reinterpret_cast<GetDriverTable>(dlsym(library, kGetDriverTable));
    if (get == nullptr) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "{}: has no function '{}', expected a library "
                    "of devices",
                    candidate, kGetDriverTable);
    }
    const DriverTable* const table = get(kTableVersion);
    if (table == nullptr) {
      return Errorf(StatusCode::kFailedPrecondition,
                    "{}: does not have version {} of the table, which this program needs",
                    candidate, kTableVersion);
    }
    return table;
  }
  return Errorf(StatusCode::kNotFound, "no library of devices: {}", reasons);
}

}  // namespace

Status ToStatus(Code code, const Failure& failure, const std::string& operation) {
  StatusCode status = StatusCode::kInternal;
  switch (code) {
    case Code::kOk:
      return OkStatus();
    case Code::kNotReady:
    case Code::kLost:
      status = StatusCode::kUnavailable;
      break;
    case Code::kNoDriver:
    case Code::kOldDriver:
      status = StatusCode::kFailedPrecondition;
      break;
    case Code::kOutOfMemory:
      status = StatusCode::kResourceExhausted;
      break;
    case Code::kNotSupported:
      status = StatusCode::kUnimplemented;
      break;
    case Code::kRefused:
      status = StatusCode::kPermissionDenied;
      break;
    case Code::kInvalid:
      status = StatusCode::kInvalidArgument;
      break;
    case Code::kNotFound:
      status = StatusCode::kNotFound;
      break;
    case Code::kOther:
      break;
  }
  const size_t length = strnlen(failure.text, sizeof(failure.text));
  return Errorf(status, "{}: {}", operation,
                length == 0 ? fmt::format("code {}", static_cast<int32_t>(code))
                            : std::string(failure.text, length));
}

Result<std::shared_ptr<Driver>> Driver::Use(const DriverTable* table) {
  if (table->version != kTableVersion || table->bytes != sizeof(DriverTable)) {
    return Errorf(StatusCode::kFailedPrecondition,
                  "library of devices: its table is of version {} and {} bytes, expected version "
                  "{} and {} bytes",
                  table->version, table->bytes, kTableVersion, sizeof(DriverTable));
  }
  std::shared_ptr<Driver> driver(new Driver(*table));
  CAIRN_RETURN_IF_ERROR(driver->Initialize());
  return driver;
}

Result<std::shared_ptr<Driver>> Driver::Probe(const std::string& path) {
  CAIRN_ASSIGN_OR_RETURN(const DriverTable* const table, OpenLibrary(path));
  return Use(table);
}

Result<std::shared_ptr<Driver>> Driver::Load(const std::string& path) {
  static Mutex* const mu = new Mutex;
  static auto* const known = new std::map<std::string, Result<std::shared_ptr<Driver>>>;
  MutexLock lock(*mu);
  const auto it = known->find(path);
  if (it != known->end()) return it->second;
  Result<std::shared_ptr<Driver>> driver = Probe(path);
  if (!driver.ok()) log::Warn("no_device_driver", {{"reason", Message(driver.status())}});
  return known->emplace(path, std::move(driver)).first->second;
}

Status Driver::Initialize() {
  Failure failure;
  const auto name = fmt::format("{} driver", table_.name);
  CAIRN_RETURN_IF_ERROR(ToStatus(table_.initialize(&failure), failure, name));
  uint32_t count = 0;
  CAIRN_RETURN_IF_ERROR(ToStatus(table_.count(&count, &failure), failure, name));
  for (uint32_t ordinal = 0; ordinal < count; ++ordinal) {
    DeviceFacts facts;
    CAIRN_RETURN_IF_ERROR(ToStatus(table_.facts(ordinal, &facts, &failure), failure,
                                   fmt::format("{}, device {}", name, ordinal)));
    if (facts.granularity == 0) {
      return Errorf(StatusCode::kInternal, "{}, device {}: got granularity 0, expected more", name,
                    ordinal);
    }
    devices_.push_back({.ordinal = ordinal,
                        .name = std::string(facts.name, strnlen(facts.name, sizeof(facts.name))),
                        .uuid = UuidText(facts.uuid),
                        .memory_bytes = facts.memory_bytes,
                        .granularity = facts.granularity,
                        .exports = (facts.flags & kExports) != 0,
                        .registers = (facts.flags & kRegisters) != 0,
                        .registers_read_only = (facts.flags & kRegistersReadOnly) != 0,
                        .family_major = facts.family_major,
                        .family_minor = facts.family_minor,
                        .copy_engines = facts.copy_engines});
  }
  return OkStatus();
}

Result<DeviceInfo> Driver::Find(const std::string& text) const {
  const DeviceInfo* found = nullptr;
  std::string all;
  for (const DeviceInfo& info : devices_) {
    all += fmt::format("{}{} ({})", all.empty() ? "" : ", ", info.ordinal, info.uuid);
    if (text == std::to_string(info.ordinal)) return info;
    if (text.size() < 8 || info.uuid.rfind(text, 0) != 0) continue;
    if (found != nullptr) {
      return InvalidArgument("device '{}': several uuids begin so, expected one of {}", text, all);
    }
    found = &info;
  }
  if (found != nullptr) return *found;
  return Errorf(StatusCode::kNotFound, "device '{}': expected one of {}", text,
                all.empty() ? "none: there is no device" : all);
}

Result<std::shared_ptr<Device>> Driver::Open(uint32_t ordinal) {
  if (ordinal >= devices_.size()) {
    return Errorf(StatusCode::kNotFound, "device {}: there are {}", ordinal, devices_.size());
  }
  Failure failure;
  CAIRN_RETURN_IF_ERROR(ToStatus(table_.open(ordinal, &failure), failure,
                                 fmt::format("device {}: opening", ordinal)));
  return std::shared_ptr<Device>(new Device(shared_from_this(), devices_[ordinal]));
}

}  // namespace cairn::device
