#include "tests/fault/adversary/scene.h"

#include <algorithm>
#include <atomic>

namespace cairn::fault {

void Findings::Add(const std::string& text) {
  MutexLock lock(mu_);
  const bool known = std::find(found_.begin(), found_.end(), text) != found_.end();
  if (!known && found_.size() < 50) found_.push_back(text);
}

void Findings::Note(const std::string& text) {
  MutexLock lock(mu_);
  if (notes_.size() < 20) notes_.push_back(text);
}

std::vector<std::string> Findings::Take() {
  MutexLock lock(mu_);
  return std::exchange(found_, {});
}

std::vector<std::string> Findings::Notes() {
  MutexLock lock(mu_);
  return std::exchange(notes_, {});
}

bool Scene::Spend(std::chrono::milliseconds time) const {
  const TimePoint end = SteadyClock::Get().Now() + time;
  while (going() && SteadyClock::Get().Now() < end) {
    std::this_thread::sleep_for(std::min(time, std::chrono::milliseconds(10)));
  }
  return going();
}

void Scene::Expect(bool held, const std::string& text) {
  if (!held && going()) findings_.Add(text);
}

std::string Scene::Tenant(const std::string& name) {
  static std::atomic<uint64_t> number{0};
  return fmt::format("{}{}-{}", kTenantPrefix, name, number.fetch_add(1));
}

void Scene::PauseHonest() {
  for (HonestLoad* load : honest) load->Pause();
}

void Scene::ContinueHonest() {
  for (HonestLoad* load : honest) load->Continue();
}

}  // namespace cairn::fault
